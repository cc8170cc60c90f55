"""Makes a job for the tuner of an op's call: which kernels compete, and under which key the choice is kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ..machine.numerics import Numerics
from ..ops.spec import Arguments
from ..rewrite import Call
from ..runtime.job import REFERENCE, Candidate, Job


def job_of(call: Call, numerics: Numerics) -> Job:
    """The call's impls, and plain PyTorch where that competes, under a key of all that may decide between them."""
    impls_of = ",".join(impl.name for impl in call.impls)
    key = f"{call.op.name} {_describe(call.args)} {_describe(call.kwargs)} of {impls_of}{numerics.key()}"
    given, competes = Arguments.of(call.op.reference, *call.args, **call.kwargs), call.op.reference_competes
    competes = competes(given) if callable(competes) else competes
    reference = (_Reference(call.op.reference),) if competes or not call.impls else ()
    impls: tuple[Candidate, ...] = (*call.impls, *reference) if call.op.measured else call.impls[:1]
    family, size = call.op.family(given) if call.op.family else (key, 0)
    return Job(
        key, impls, call.args, call.kwargs, call.op.channels_last, f"{call.op.name} {family}{numerics.key()}", size
    )


@dataclass(frozen=True)
class _Reference:
    """Plain PyTorch as a candidate: sometimes it is the fastest."""

    launch: Callable[..., object]
    name: str = REFERENCE
    carries_over: bool = True
    per_thread: bool = False


def _describe(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype)[6:]}{list(value.shape)}/{list(value.stride())}"
    if isinstance(value, (tuple, list)):
        return "(" + " ".join(map(_describe, value)) + ")"
    if isinstance(value, dict):
        return " ".join(f"{name}={_describe(item)}" for name, item in value.items())
    return repr(value)
