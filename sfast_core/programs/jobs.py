"""Makes a job for the tuner of an op's call: which kernels compete, and under which key the choice is kept."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ..machine.numerics import Numerics
from ..ops.spec import Arguments
from ..rewrite import Call
from ..runtime.job import REFERENCE, Candidate, Job


def job_of(call: Call, numerics: Numerics) -> Job:
    """The call's impls, and plain PyTorch where that competes, under a key with everything that may decide between
    them.
    """
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


def counted(jobs: list[Job], progress: Callable[[float], None] | None) -> list[Job]:
    """``jobs``, whose candidates report their first two launches to ``progress``: one compiles, the other is timed.

    ``progress`` is given the share that is done, from 0 to 1, by several threads.
    """
    if progress is not None:
        distinct = {job.key: job for job in jobs}  # as the tuner has them
        count = _Count(2 * sum(len(job.impls) for job in distinct.values()), progress)
        for job in distinct.values():
            job.impls = {name: _Counted(impl, count) for name, impl in job.impls.items()}
    return jobs


class _Count:
    """Counts launches and reports each hundredth."""

    def __init__(self, total: int, progress: Callable[[float], None]) -> None:
        self._total, self._progress = total, progress
        self._done = 0
        self._lock = threading.Lock()

    def add(self) -> None:
        with self._lock:
            self._done += 1
            tell = self._done * 100 // self._total > (self._done - 1) * 100 // self._total
        if tell:
            self._progress(self._done / self._total)


class _Counted:
    """A candidate whose first two launches are counted."""

    def __init__(self, impl: Candidate, count: _Count) -> None:
        self.name, self.carries_over, self.per_thread = impl.name, impl.carries_over, impl.per_thread
        self._impl, self._count, self._left = impl, count, 2

    def launch(self, *args: object, **kwargs: object) -> object:
        try:
            return self._impl.launch(*args, **kwargs)
        finally:
            if self._left:
                self._left -= 1
                self._count.add()
