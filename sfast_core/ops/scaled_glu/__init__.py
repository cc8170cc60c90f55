"""The first half of a gated feed-forward layer with quantised weights: one linear layer times another's activation."""

from __future__ import annotations

from ..needs import HOPPER
from ..spec import Arguments, Impl, Op
from .reference import scaled_glu

__all__ = ["OP", "scaled_glu"]


def _family(call: Arguments) -> tuple[str, int]:
    kind = f"{tuple(call.weight.shape)} {call.weight_scale.numel()} {call.bias is not None}"
    return f"{call.x.dtype} {kind}", call.x.numel()


_NEEDS = HOPPER.of(extension="sfast_scaled_linear_status")

OP = Op(
    name="scaled_glu",
    reference=scaled_glu,
    impls=(
        Impl("cuda", needs=_NEEDS),
        Impl("cuda_2", "cuda_impl", rank=1, carries_over=False, needs=_NEEDS),
    ),
    measured=True,
    family=_family,
    reference_competes=False,
    optional=True,
)
