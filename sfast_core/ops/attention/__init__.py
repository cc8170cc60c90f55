"""Softmax attention by whichever exact backend is fastest for the shape."""

from __future__ import annotations

from ...machine.numerics import CUDNN, CUDNN_ATTENTION, EFFICIENT, FLASH
from ..needs import HOPPER, Needs
from ..spec import Arguments, Impl, Op
from .reference import attention, is_grouped

__all__ = ["OP", "attention"]

_FEW_KEYS = 128  #: a prompt's: what triton_cross takes, and cuda doesn't


def _family(call: Arguments) -> tuple[str, int]:
    q, k = call.q, call.k
    few = k.shape[2] if k.shape[2] <= _FEW_KEYS else "many"
    shared = f" {q.shape[1] // k.shape[1]} a key" if is_grouped(q, k, call.v) else ""
    kind = f"{q.dtype} {q.shape[3]} {few} {call.mask is not None} {call.is_causal}{shared}"
    return kind, q.shape[0] * q.shape[1] * q.shape[2]


def _masked_or_grouped(call: Arguments) -> bool:
    """PyTorch has kernels for these that are no impl here."""
    return call.mask is not None or is_grouped(call.q, call.k, call.v)


def _few_keys_or_narrow(call: Arguments) -> bool:
    return call.k.shape[2] <= _FEW_KEYS or call.q.shape[3] == 40


OP = Op(
    name="attention",
    reference=attention,
    impls=(
        Impl("triton_cross", needs=Needs(triton=True)),
        Impl("cuda", needs=HOPPER.of(extension="sfast_attention_status")),
        # 60 to 120 ms for a plan, which PyTorch keeps for the thread that made it, for ever. Slower than triton_cross
        # at 55 of 56 calls (1.75 times at most), than cuda with heads of 40 at 13 of 13 (1.2 to 1.4), with heads of 64
        # at 19 of 26 (H100).
        Impl(
            "cudnn",
            per_thread=True,
            superseded_by=("triton_cross", "cuda"),
            superseded_if=_few_keys_or_narrow,
            needs=Needs((8, 0), allowed=(CUDNN, CUDNN_ATTENTION)),
        ),
        # 1.25 to 3.5 times slower (H100)
        Impl("flash", superseded_by=("cuda",), needs=Needs((8, 0), allowed=(FLASH,))),
        Impl("xformers", needs=Needs((7, 0))),
        Impl("triton_chunked", needs=Needs(triton=True)),
        # 1.04 to 5 times slower (H100)
        Impl("efficient", superseded_by=("cuda", "cudnn", "flash"), needs=Needs((7, 0), allowed=(EFFICIENT,))),
    ),
    measured=True,
    family=_family,
    reference_competes=_masked_or_grouped,  # else it runs one of these kernels
)
