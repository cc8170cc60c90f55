"""Decides between the impls of an op by timing them once on its shape, and compiles their kernels side by side before that."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch.utils import _pytree

from ..choices import Choice, Choices
from .compile_only import CompileOnly
from .graphs import Backend

REFERENCE = "reference"
_LAUNCHES = 10
_REPLAYS = 3
_THREADS = 8
_EXAMPLE_BYTES = 256 * 2**20  #: what the examples of all threads may take together; a larger one runs alone
log = logging.getLogger("fast_compile")


class Candidate(Protocol):
    """An impl as the tuner sees it."""

    @property
    def name(self) -> str: ...

    @property
    def launch(self) -> Callable[..., Any]: ...

    @property
    def carries_over(self) -> bool: ...


class Job:
    """One op call to decide: its key on disk, the impls that can compute it, and its arguments as meta tensors.

    Calls of one ``family`` and of about one ``size`` are decided alike.
    """

    def __init__(
        self,
        key: str,
        impls: Sequence[Candidate],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        channels_last: bool = False,
        family: str = "",
        size: int = 0,
    ) -> None:
        self.key = key
        self.family, self.size = family or key, size
        self.impls = {impl.name: impl for impl in impls}
        self._args, self._kwargs = args, kwargs
        self._channels_last = channels_last

    @property
    def bytes(self) -> int:
        """The size of the arguments, and about that of the results."""
        leaves = _pytree.tree_leaves((self._args, self._kwargs))
        return 2 * sum(leaf.nbytes for leaf in leaves if isinstance(leaf, torch.Tensor))

    def example(self, device: torch.device, filled: bool = True) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Random arguments of these shapes. Not zeros: they run faster than real data. The global generators stay as they are.

        Args:
            device: where they lie.
            filled: whether anybody asks for the values of floating-point ones.
        """
        generator = torch.Generator(device).manual_seed(0) if filled else None

        def make(meta: Any) -> Any:
            if isinstance(meta, (tuple, list)):
                return type(meta)(make(item) for item in meta)
            if not isinstance(meta, torch.Tensor):
                return meta
            tensor = torch.empty_strided(meta.shape, meta.stride(), dtype=meta.dtype, device=device)
            if self._channels_last and meta.dim() == 4:
                tensor = torch.empty(meta.shape, dtype=meta.dtype, device=device, memory_format=torch.channels_last)
            if not tensor.is_floating_point():
                return tensor.zero_()  # always: they may be indices
            return tensor.normal_(generator=generator) if filled else tensor

        return tuple(make(arg) for arg in self._args), {name: make(arg) for name, arg in self._kwargs.items()}


class _Share:
    """A number of bytes that threads take parts of."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken = 0
        self._changed = threading.Condition()

    @contextmanager
    def held(self, count: int) -> Iterator[None]:
        """Wait until ``count`` bytes are free, or all of them where it is more, and hold them."""
        count = min(count, self._limit)
        with self._changed:
            self._changed.wait_for(lambda: self._taken + count <= self._limit)
            self._taken += count
        try:
            yield
        finally:
            with self._changed:
                self._taken -= count
                self._changed.notify_all()


class Tuner:
    """Makes the choices for one device, and keeps them."""

    def __init__(self, device: torch.device, backend: Backend, choices: Choices, measure: bool) -> None:
        self._device = device
        self._backend = backend
        self._choices = choices
        self._measure = measure

    def decide(self, jobs: Sequence[Job]) -> list[str]:
        """The name of the impl to take for each job. Also compiles every kernel that the chosen impls need.

        An impl that fails here is never taken; where all fail it is the reference.
        """
        distinct = {job.key: job for job in jobs if job.impls}
        chosen = {key: name for key, job in distinct.items() if (name := self._known(job))}
        start = time.perf_counter()
        broken = self._compile(distinct.values())
        compiled = time.perf_counter()
        measured = {key: self._fastest(job, broken) for key, job in distinct.items() if key not in chosen}
        chosen |= measured
        decided = [(job, chosen[job.key]) for job in distinct.values() if len(job.impls) > 1 and (job.key, chosen[job.key]) not in broken]
        self._choices.add([Choice(job.key, job.family, max(1, job.size), name) for job, name in decided if self._measure])
        log.debug("%d kernels ready in %.2f s", len(distinct), compiled - start)
        log.debug("%d ops measured in %.2f s", len(measured), time.perf_counter() - compiled)
        torch.cuda.empty_cache()  # the examples' memory: a graph's pool can't use it
        return [REFERENCE if not job.impls or (job.key, chosen[job.key]) in broken else chosen[job.key] for job in jobs]

    def _known(self, job: Job) -> str | None:
        if len(job.impls) == 1 or not self._measure:
            return next(iter(job.impls))
        name = self._choices.get(job.key)
        if name is None:
            name = self._choices.near(job.family, job.size)
            if name in job.impls and not job.impls[name].carries_over:
                return None
        return name if name in job.impls else None

    def _compile(self, jobs: Any) -> set[tuple[str, str]]:
        """Launch each impl in question once, in threads: Triton's passes and ptxas run outside the interpreter's lock.

        Returns the (job, impl) pairs that failed.
        """
        pairs = [(job, name) for job in jobs for name in ([self._known(job)] if self._known(job) else job.impls) if name != REFERENCE]
        memory = _Share(_EXAMPLE_BYTES)

        def launch(pair: tuple[Job, str]) -> tuple[str, str] | None:
            job, name = pair
            try:
                with memory.held(job.bytes), torch.no_grad(), torch.cuda.device(self._device):
                    args, kwargs = job.example(self._device, filled=False)
                    with CompileOnly():
                        job.impls[name].launch(*args, **kwargs)
                    torch.cuda.current_stream().synchronize()
                return None
            except Exception as error:
                log.debug("%s of %s failed: %s", name, job.key, error)
                return job.key, name

        with ThreadPoolExecutor(_THREADS, initializer=self._make_current) as threads:
            return {failed for failed in threads.map(launch, pairs) if failed}

    def _make_current(self) -> None:
        """Make the device's context that of a new thread. Memory from PyTorch's cache doesn't, and cuBLASLt and TMA descriptors fail without."""
        with torch.cuda.device(self._device):
            torch.cuda.current_stream().synchronize()

    def _fastest(self, job: Job, broken: set[tuple[str, str]]) -> str:
        working = [name for name in job.impls if (job.key, name) not in broken]
        if len(working) < 2:
            return working[0] if working else REFERENCE
        with torch.no_grad():
            args, kwargs = job.example(self._device)
            times = {name: self._time(job.impls[name].launch, args, kwargs) for name in working}
        log.debug("%s: %s", job.key, ", ".join(f"{name} {seconds * 1e6:.1f} us" for name, seconds in times.items()))
        return min(times, key=lambda name: times[name])

    def _time(self, launch: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
        """Seconds a launch, from replays of a graph of several: launches one by one would time the CPU."""

        def repeat() -> None:
            for _ in range(_LAUNCHES):
                launch(*args, **kwargs)

        try:
            graph = self._backend.capture(repeat, alone=True)
        except Exception as error:
            log.debug("can't be captured: %s", error)
            return float("inf")
        best = float("inf")
        for _ in range(_REPLAYS):
            self._backend.synchronise()
            start = time.perf_counter()
            graph.replay()
            self._backend.synchronise()
            best = min(best, (time.perf_counter() - start) / _LAUNCHES)
        graph.release()
        return best
