"""``x @ weight.T (+ bias) (+ residual)`` by one of cuBLASLt's algorithms: its first is not always the fastest."""

from __future__ import annotations

import math

import torch

from ...native import counters
from ...target import Target
from ..packs import dense
from ..spec import Arguments
from .constraints import why_not_epilogue, why_not_shapes
from .cublaslt_library import why_no_library
from .cublaslt_plans import ALIGNMENT, Addresses, Problem, plans

ROW_UNIT = ALIGNMENT // 2  # elements


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why cuBLASLt can't compute this, or None."""
    if reason := why_not_epilogue(call, "none", residual=True) or why_not_shapes(call):
        return reason
    (n, k), out = call.weight.shape, (*call.x.shape[:-1], call.weight.shape[0])
    if call.x.numel() == 0 or call.weight.numel() == 0:
        return "x or weight is empty"
    if max(call.x.numel(), math.prod(out)) >= 2**31:
        return f"x of {list(call.x.shape)} or the result of {list(out)} has 2^31 elements or more"
    if n % ROW_UNIT or k % ROW_UNIT:
        return f"weight is {list(call.weight.shape)}, both must be multiples of {ROW_UNIT}"
    if call.residual is not None and not call.residual.is_contiguous():
        return f"residual has strides {call.residual.stride()}, must be contiguous"
    for name, tensor in (("x", call.x), ("weight", call.weight)):
        if _rows(tensor) is None:
            return (
                f"{name} of {list(tensor.shape)} with strides {tensor.stride()} is no matrix whose rows begin on"
                f" {ALIGNMENT} bytes"
            )
    return why_no_library()


def launch(
    x,
    weight,
    bias=None,
    act="none",
    gated=False,
    residual=None,
    gate_first=False,
    *,
    rank: int = 0,
    half_sums: bool = False,
) -> torch.Tensor:
    """The product in x's dtype, summed in float32 and rounded once, by cuBLASLt's algorithm number ``rank``.

    Operands that lie otherwise than ``why_not`` was told are copied.

    Args:
        x: [..., K].
        weight: [N, K].
        bias: [N] or None.
        act: "none".
        gated: False, and so is ``gate_first``.
        residual: [..., N] or None.
        rank: below :data:`.cublaslt_plans.RANKS`; the last algorithm stands in for one that is not there.
        half_sums: sum in float16, which x has to be.

    Returns:
        [..., N], contiguous.

    Raises:
        RuntimeError: cuBLASLt has no algorithm for this, or refused it.
    """
    rows, matrix = _matrix(x), _matrix(weight)
    added = None if residual is None else dense(residual)
    shift = None if bias is None else dense(bias)
    out = torch.empty((*x.shape[:-1], weight.shape[0]), dtype=x.dtype, device=x.device)
    with torch.cuda.device(x.device):
        problem = Problem(
            device=torch.cuda.current_device(),
            dtype=x.dtype,
            m=rows.shape[0],
            n=matrix.shape[0],
            k=matrix.shape[1],
            x_stride=_row_stride(rows),
            weight_stride=_row_stride(matrix),
            bias=shift is not None,
            half_sums=half_sums,
        )
        plan = plans().plan(problem)
        algorithm = plan.algorithm(rank)
        workspace = counters.take(algorithm.workspace_bytes, x.device)
        if workspace is None:
            workspace = torch.empty(algorithm.workspace_bytes, dtype=torch.uint8, device=x.device)
        addresses = Addresses(
            x=rows.data_ptr(),
            weight=matrix.data_ptr(),
            bias=None if shift is None else shift.data_ptr(),
            residual=None if added is None else added.data_ptr(),
            out=out.data_ptr(),
        )
        plan.launch(algorithm, addresses, workspace.data_ptr(), torch.cuda.current_stream().cuda_stream)
    return out


def _rows(tensor: torch.Tensor) -> torch.Tensor | None:
    """``tensor`` [..., K] as [M, K] without a copy; None unless rows are dense, and apart by ALIGNMENT's multiples."""
    try:
        rows = tensor.view(math.prod(tensor.shape[:-1]), tensor.shape[-1])
    except RuntimeError:
        return None
    if rows.stride(1) == 1 and _row_stride(rows) % ROW_UNIT == 0 and _row_stride(rows) >= rows.shape[1]:
        return rows
    return None


def _row_stride(rows: torch.Tensor) -> int:
    """Elements from one row to the next; the stride of a single row says nothing."""
    return rows.stride(0) if rows.shape[0] > 1 else rows.shape[1]


def _matrix(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` [..., K] as [M, K] for cuBLASLt, copied only where it must be."""
    rows = _rows(tensor)
    return dense(tensor).view(-1, tensor.shape[-1]) if rows is None or rows.data_ptr() % ALIGNMENT else rows
