"""``x @ weight.T (+ bias) (+ residual)`` of few rows by a kernel of the CUDA extension: the embedding of a timestep, and what is projected from it.

H100, fp16, us, the weight not in L2: 2x1280x1280 4.1, cuBLASLt 5.2; 2x1280x2816 6.7 and 7.5; 2x20160x1280 23.0 and 23.5;
8x13760x1280 26.7 and 15.6. An activation takes no kernel of its own. The kernel is in ``csrc/linear_few.cu``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from ...native import load
from ..constraints import why_no_cuda, why_not_half, why_not_linear
from ..packs import dense

if TYPE_CHECKING:
    from ...target import Target

MOST_ROWS = 8
DEPTH_UNIT, MOST_DEPTH = 8, 2**24  #: elements: 16 bytes, and as many as 32-bit places reach


def why_not(
    target: Target,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> str | None:
    """The reason why the kernel can't compute this, or None."""
    if reason := why_no_cuda(target, (8, 0)) or why_not_half(x, weight=weight, bias=bias, residual=residual):
        return reason
    if reason := why_not_linear(x, weight, bias, residual):
        return reason
    rows = math.prod(x.shape[:-1])
    if rows > MOST_ROWS:
        return f"x has {rows} rows, at most {MOST_ROWS} are few"
    if not 0 < weight.shape[1] <= MOST_DEPTH or weight.shape[1] % DEPTH_UNIT:
        return f"rows of {weight.shape[1]} elements must be a multiple of {DEPTH_UNIT}, {MOST_DEPTH} at most"
    return load.why_not(target.device)


def launch(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    act: str = "none",
) -> torch.Tensor:
    """The product in x's dtype, all in float32 until the result is rounded, once.

    Args:
        x: [..., K], of :data:`MOST_ROWS` rows at most.
        weight: [N, K].
        bias: [N] or None.
        residual: [..., N] or None.
        act: "none", "silu" or "relu", applied last.

    Returns:
        [..., N], contiguous.

    Raises:
        ExtensionUnavailable: the extension isn't built.
        ExtensionError: CUDA refused the kernel.
    """
    rows, matrix = dense(x), dense(weight)
    shift, added = (None if tensor is None else tensor.contiguous() for tensor in (bias, residual))
    out = torch.empty((*x.shape[:-1], weight.shape[0]), dtype=x.dtype, device=x.device)
    with torch.cuda.device_of(x):
        status = load.library().sfast_linear_few(
            rows.data_ptr(),
            matrix.data_ptr(),
            load.pointer(shift),
            load.pointer(added),
            out.data_ptr(),
            math.prod(x.shape[:-1]),
            *weight.shape,
            load.ACTS[act],
            load.DTYPES[x.dtype],
            torch.cuda.current_stream(x.device).cuda_stream,
        )
    load.check(status, f"linear_few for x {tuple(x.shape)}, weight {tuple(weight.shape)} {x.dtype}")
    return out
