"""Large products of e4m3 by a persistent Triton kernel that reads through TMA.

H100: 16384 x 14336 x 3072 968 us, PyTorch's 1076; 8192 x 12288 x 3072 416 and 460. At smaller ones PyTorch's is faster,
and there is a kernel to compile.
"""

from __future__ import annotations

import torch
from triton.tools.tensor_descriptor import TensorDescriptor  # Triton 3.4 and later

from ...target import Target
from ..needs import HALVES
from ..packs import dense
from ..spec import Arguments
from ..triton_launch import capacity, launcher
from .constraints import why_not_multiples, why_not_out, why_not_quantised
from .triton_impl import GROUP_ROWS, Tiling, float8_of
from .triton_kernels import scaled_linear_tma_kernel

TILING = Tiling(128, 256, 128, 8, 3)
UNIT = 16  #: of columns and depth: bytes


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why the kernel can't compute this, or None."""
    if reason := why_not_quantised(call, (torch.float8_e4m3fn,)):
        return reason
    return why_not_multiples(call.weight, UNIT, UNIT) or why_not_out(call.out_dtype, *HALVES)


def launch(x, weight, weight_scale, bias, input_scale, out_dtype, rotate=0) -> torch.Tensor:
    """As :func:`.reference.scaled_linear`, rounded once; sums keep about 14 bits."""
    columns, depth = weight.shape
    source, matrix = dense(x).reshape(-1, depth), dense(weight)
    out = torch.empty((*x.shape[:-1], columns), dtype=out_dtype, device=x.device)
    rows = source.shape[0]
    programs = min(capacity(x.device)[0], -(-rows // TILING.rows) * -(-columns // TILING.columns))
    launcher(scaled_linear_tma_kernel, (programs,))(
        TensorDescriptor(source, [rows, depth], [depth, 1], [TILING.rows, TILING.depth]),
        TensorDescriptor(matrix, [columns, depth], [depth, 1], [TILING.columns, TILING.depth]),
        input_scale.contiguous(),
        weight_scale.contiguous(),
        None if bias is None else bias.contiguous(),
        TensorDescriptor(out, [rows, columns], [columns, 1], [TILING.rows, TILING.columns]),
        rows,
        columns,
        depth,
        GROUP_ROWS,
        programs,
        ROW_STEP=int(input_scale.numel() > 1),
        COLUMN_STEP=int(weight_scale.numel() > 1),
        BLOCK_M=TILING.rows,
        BLOCK_N=TILING.columns,
        BLOCK_K=TILING.depth,
        OPERAND=float8_of(x),
        num_warps=TILING.warps,
        num_stages=TILING.stages,
    )
    return out
