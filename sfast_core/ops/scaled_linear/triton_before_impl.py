"""A product with a weight of 8 bits that a kernel dequantises before: cuBLAS outweighs that for many rows."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ...target import Target
from ..packs import dense
from ..spec import Arguments
from ..triton_launch import launcher
from .constraints import why_not_dequantised
from .triton_impl import why_no_kernel
from .triton_kernels import dequantise_kernel

BLOCK = 2048
MOST_DEPTH = BLOCK * 65535


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why the kernel can't compute this, or None."""
    if reason := why_no_kernel(target, call.weight) or why_not_dequantised(call):
        return reason
    if call.weight.shape[1] > MOST_DEPTH:
        return f"weight is {list(call.weight.shape)}, at most {MOST_DEPTH} deep is possible"
    return None


def launch(x, weight, weight_scale, bias, input_scale, out_dtype, rotate=0) -> torch.Tensor:
    """As :func:`.reference.scaled_linear`, which rounds the dequantised weight to x's dtype, too."""
    matrix, (columns, depth) = dense(weight), weight.shape
    plain = torch.empty(weight.shape, dtype=x.dtype, device=x.device)
    launcher(dequantise_kernel, (columns, -(-depth // BLOCK)))(
        matrix,
        weight_scale.contiguous(),
        plain,
        depth,
        STEP=int(weight_scale.numel() > 1),
        BLOCK=BLOCK,
        num_warps=4,
    )
    return F.linear(x, plain, None if bias is None else bias.to(x.dtype)).contiguous()
