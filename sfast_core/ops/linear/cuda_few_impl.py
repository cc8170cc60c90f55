"""``x @ weight.T (+ bias) (+ residual)`` of few rows by the CUDA extension: a timestep's embedding and projections.

2x1280x1280, the weight not in L2: 4.1 us, cuBLASLt's 5.2; of eight rows and many columns that is the faster (H100;
docs/notes/0015-bias-residual-and-few-rows.md). An activation takes no kernel of its own. The kernel is in
``csrc/linear_few.cu``.
"""

from __future__ import annotations

import math

import torch

from ...native import load
from ...target import Target
from ..packs import contiguous, dense
from ..spec import Arguments
from .constraints import why_not_epilogue, why_not_shapes

MOST_ROWS = 8
#: With an activation, up to so many rows it takes any weight. With more, one of so many elements: there the
#: activation's kernel outweighs what the product may lose.
ROWS_OF_ANY, MOST_ELEMENTS = 2, 2**22
DEPTH_UNIT, MOST_DEPTH = 8, 2**24  #: elements: 16 bytes, and as many as 32-bit places reach


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why the kernel can't compute this, or is known to be slow; or None."""
    if reason := why_not_epilogue(call, *load.ACTS, residual=True) or why_not_shapes(call):
        return reason
    rows, depth = math.prod(call.x.shape[:-1]), call.weight.shape[1]
    if rows > MOST_ROWS:
        return f"x has {rows} rows, at most {MOST_ROWS} are few"
    if call.act != "none" and rows > ROWS_OF_ANY and call.weight.numel() > MOST_ELEMENTS:
        return f"weight is {list(call.weight.shape)}, x has more than {ROWS_OF_ANY} rows"
    if not 0 < depth <= MOST_DEPTH or depth % DEPTH_UNIT:
        return f"rows of {depth} elements must be a multiple of {DEPTH_UNIT}, {MOST_DEPTH} at most"
    return None


def launch(x, weight, bias=None, act="none", gated=False, residual=None, gate_first=False) -> torch.Tensor:
    """The product in x's dtype, all in float32 until the result is rounded, once.

    Args:
        x: [..., K], of :data:`MOST_ROWS` rows at most.
        weight: [N, K].
        bias: [N] or None.
        act: "none", "silu" or "relu", which PyTorch computes in a kernel of its own (H100: 2 us).
        gated: False, and so is ``gate_first``.
        residual: [..., N] or None.

    Returns:
        [..., N], contiguous.
    """
    rows, matrix = dense(x), dense(weight)
    shift, added = contiguous(bias, residual)
    out = torch.empty((*x.shape[:-1], weight.shape[0]), dtype=x.dtype, device=x.device)
    columns, depth = weight.shape
    load.launch(
        "sfast_linear_few",
        x.device,
        f"linear_few for x {tuple(x.shape)}, weight {tuple(weight.shape)} {x.dtype}",
        x=rows,
        weight=matrix,
        bias=shift,
        residual=added,
        out=out,
        rows=math.prod(x.shape[:-1]),
        columns=columns,
        depth=depth,
        act=load.ACTS[act],
        dtype=load.DTYPES[x.dtype],
    )
    return out
