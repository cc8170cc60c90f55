"""A linear layer with what follows it: an activation, the gate of GEGLU, or a residual.

PyTorch's own linear layer is the op without any of these: what no pass has fused is found as it stands in the graph.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..needs import FLOATS, HALVES, Needs
from ..spec import Arguments, Impl, Op
from .reference import linear

__all__ = ["OP", "linear"]

_HALF = Needs((8, 0), dtypes=HALVES, alike="weight bias residual")
_FP16 = _HALF.of(dtypes=(torch.float16,))


def _family(call: Arguments) -> tuple[str, int]:
    first = " gate first" if call.gate_first else ""
    kind = f"{call.bias is not None} {call.act} {call.gated} {call.residual is not None}{first}"
    return f"{call.x.dtype} {tuple(call.weight.shape)} {kind}", call.x.numel()


_BLOCK_K = 64  #: of triton_tma


def _above_256_rows_in_blocks(call: Arguments) -> bool:
    """triton_tma is slower at times where a row is no number of its blocks (OmniGen2's 2520: 1.8 ms, not 1.2)."""
    depth = call.x.shape[-1]
    return call.x.numel() > 256 * depth and depth % _BLOCK_K == 0


def _alone_or_gated(call: Arguments) -> bool:
    """PyTorch adds in a pass of its own, and so it computes activations."""
    return call.gated or (call.act == "none" and call.residual is None)


OP = Op(
    name="linear",
    reference=linear,
    plain=F.linear,
    impls=(
        # Its time grows with the rows, cuBLASLt's doesn't: what was the faster at 2 may be the slower at 4.
        Impl("cuda_few", carries_over=False, needs=_HALF.of(extension="sfast_device_status")),
        # One for each algorithm that cuBLASLt proposes. The order of the proposals changes with the size: the one that
        # is second at one size may be the slowest at the next, so that only the first is taken over. Of the first
        # eight, one of the first three is within 2% of the fastest at nearly all shapes of SD1.5 and SDXL
        # (docs/notes/0007); trying five took a second more at each new resolution of SDXL.
        Impl("cublaslt", needs=_HALF),
        Impl("cublaslt_2", "cublaslt_impl", rank=1, carries_over=False, needs=_HALF),
        Impl("cublaslt_3", "cublaslt_impl", rank=2, carries_over=False, needs=_HALF),
        # Only where PyTorch may sum so, too.
        Impl("cublaslt_fp16", needs=_FP16),
        Impl("cublaslt_fp16_2", "cublaslt_fp16_impl", rank=1, carries_over=False, needs=_FP16),
        Impl("cublaslt_fp16_3", "cublaslt_fp16_impl", rank=2, carries_over=False, needs=_FP16),
        Impl("torch_act", superseded_by=("cuda_few",), needs=Needs(dtypes=FLOATS, alike="weight bias")),
        Impl("triton_act", needs=Needs(triton=True, dtypes=FLOATS)),
        Impl("triton_tma", needs=_HALF.of(capability=(9, 0), triton=True)),
        # With more rows slower at 50 of 50 calls of SD1.5 and SDXL (H100), and another kernel to compile.
        Impl(
            "triton_gate",
            superseded_by=("triton_tma",),
            superseded_if=_above_256_rows_in_blocks,
            needs=Needs(triton=True, dtypes=FLOATS, typed="x weight bias"),
        ),
    ),
    measured=True,
    family=_family,
    reference_competes=_alone_or_gated,
)
