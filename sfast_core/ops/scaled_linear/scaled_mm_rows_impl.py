"""Products of e4m3 by PyTorch's own with a scale for each row and column (CUTLASS's), also where matrices have one.

H100: 4608 x 3072 x 21504 417 us, cuBLASLt's with one scale 512. Two launches that write a scale as often as there are
rows and columns are 4 us.
"""

from __future__ import annotations

import torch

from ...target import Target
from ..spec import Arguments
from .constraints import why_not_out
from .scaled_mm_impl import product, why_no_product


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why CUTLASS's product can't compute this, or None."""
    return why_no_product(call) or why_not_out(call.out_dtype, torch.bfloat16)


def launch(x, weight, weight_scale, bias, input_scale, out_dtype, rotate=0) -> torch.Tensor:
    """As :func:`.scaled_mm_impl.launch`."""
    columns, rows = weight.shape[0], x.numel() // x.shape[-1]
    by_row = input_scale.reshape(-1, 1).expand(rows, 1).contiguous()
    by_column = weight_scale.reshape(1, -1).expand(1, columns).contiguous()
    return product(x, weight, by_column, bias, by_row, out_dtype)
