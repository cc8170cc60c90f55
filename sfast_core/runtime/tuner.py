"""Chooses the fastest impl for each op call by timing them once on its shapes, compiled in threads before."""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import torch

from ..machine.choices import Choice, Choices, times_apart
from ..native.driver import leave_captures_alone
from .backend import Backend
from .compile_only import CompileOnly
from .job import REFERENCE, Job
from .stopwatch import Stopwatch

#: A call takes over the choice made at another size, unmeasured, where its share of the program's time, times the
#: square root of the ratio of the two sizes, is at most this. From SD1.5's 512x512 to 12 other sizes that costs 1.1% of
#: a step on average and 1.8% at most, from SDXL's 1024x1024 0.9% and 2.3% (H100, docs/notes/0019).
_STAKE = 0.02
_THREADS = 8
#: The most memory for example arguments of all compiling threads but the calling one; a larger example waits to be
#: the only one.
_EXAMPLE_BYTES = 256 * 2**20
log = logging.getLogger("fast_compile")


class _Share:
    """A budget of bytes that threads share."""

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


class _Progress:
    """Counts launches by several threads, and tells which part of all is done, a hundredth at a time."""

    def __init__(self, total: int, tell: Callable[[float], None]) -> None:
        self._total, self._tell, self._done = total, tell, 0
        self._lock = threading.Lock()

    def one_more(self) -> None:
        """A launch is done."""
        with self._lock:
            before, self._done = self._done, self._done + 1
        if self._done * 100 // self._total > before * 100 // self._total:
            self._tell((before + 1) / self._total)


class Tuner:
    """Chooses impls for one device, and keeps the choices.

    Args:
        device: the device.
        backend: captures the graphs that are timed.
        choices: those kept on disk.
        measure: whether to time impls, or take the first that can compute a call.
    """

    def __init__(self, device: torch.device, backend: Backend, choices: Choices, measure: bool) -> None:
        self._device = device
        self._backend = backend
        self._stopwatch = Stopwatch(backend)
        self._choices = choices
        self._measure = measure

    def decide(self, jobs: Sequence[Job], tell: Callable[[float], None] = lambda done: None) -> list[str]:
        """The name of the impl to take for each job, whose kernels are compiled by then.

        An impl that fails is never taken. Where all fail it is the reference.

        Args:
            jobs: the op calls.
            tell: is told which part of compiling and measuring is done, from 0 to 1, by several threads.
        """
        distinct = {job.key: job for job in jobs if job.impls}
        chosen = self._known(distinct, Counter(job.key for job in jobs))
        unknown = [job for key, job in distinct.items() if key not in chosen]
        pairs = [
            (job, name)
            for job in distinct.values()
            for name in ([chosen[job.key].impl] if job.key in chosen else job.impls)
            if name != REFERENCE
        ]
        progress = _Progress(len(pairs) + sum(len(job.impls) for job in unknown), tell)
        start = time.perf_counter()
        broken = self._start(pairs, progress)
        started = time.perf_counter()
        measured = self._measured(unknown, broken, progress)
        chosen |= measured
        if self._measure:
            self._choices.add(
                [
                    choice
                    for key, choice in chosen.items()
                    if len(distinct[key].impls) > 1 and (key, choice.impl) not in broken
                ]
            )
        log.debug("%d ops: kernels ready in %.2f s", len(distinct), started - start)
        log.debug("%d ops: measured in %.2f s", len(measured), time.perf_counter() - started)
        torch.cuda.empty_cache()  # the examples' memory: a graph's pool can't use it
        taken = {key: choice.impl for key, choice in chosen.items() if (key, choice.impl) not in broken}
        return [taken.get(job.key, REFERENCE) for job in jobs]

    def _known(self, jobs: Mapping[str, Job], count: Mapping[str, int]) -> dict[str, Choice]:
        """The choices that needn't be measured, by the job's key. ``count``: how often each job occurs."""
        expected = {key: found for key, job in jobs.items() if (found := self._expected(job)) is not None}
        whole = sum(count[key] * choice.seconds for key, (choice, _) in expected.items())
        return {
            key: choice
            for key, (choice, apart) in expected.items()
            if count[key] * choice.seconds * math.sqrt(apart) <= _STAKE * whole
        }

    def _expected(self, job: Job) -> tuple[Choice, float] | None:
        """The choice that could be taken without measuring, and the ratio of the size that it was measured at to this
        job's; 0 where it was measured at this very size. None where there is no such choice.
        """
        if len(job.impls) == 1 or not self._measure:
            return Choice(job.key, job.key, job.size, next(iter(job.impls)), 0.0), 0.0
        kept = self._choices.get(job.key)
        if kept is not None and kept.impl in job.impls:
            return kept, 0.0
        near = self._choices.nearest(job.family, job.size)
        if near is None or near.impl not in job.impls or not job.impls[near.impl].carries_over:
            return None
        # The job's key as its family: else this choice would be taken over again, ever further from what was measured.
        taken_over = Choice(job.key, job.key, job.size, near.impl, near.seconds * job.size / near.size)
        return taken_over, times_apart(job.size, near.size)

    def _start(self, pairs: Sequence[tuple[Job, str]], progress: _Progress) -> set[tuple[str, str]]:
        """Launch these impls once for these jobs, so that they are compiled. Returns the pairs that failed.

        Threads pay here: Triton's passes, ptxas and the driver's loading of kernels run outside the interpreter's lock.
        Impls whose preparation only helps the thread that did it are launched in this thread meanwhile.
        """
        memory = _Share(_EXAMPLE_BYTES)

        def launch(pair: tuple[Job, str]) -> tuple[str, str] | None:
            job, name = pair
            try:
                with torch.no_grad(), torch.cuda.device(self._device):
                    args, kwargs = job.example(self._device, filled=False)
                    with CompileOnly():
                        job.impls[name].launch(*args, **kwargs)
                    torch.cuda.current_stream().synchronize()
                return None
            except Exception as error:
                _log_failure(job, name, error)
                return job.key, name
            finally:
                progress.one_more()

        def launch_in_turn(pair: tuple[Job, str]) -> tuple[str, str] | None:
            with memory.held(pair[0].bytes):
                return launch(pair)

        with ThreadPoolExecutor(_THREADS, initializer=self._make_current) as threads:
            theirs = threads.map(launch_in_turn, [(job, name) for job, name in pairs if not job.impls[name].per_thread])
            mine = map(launch, [(job, name) for job, name in pairs if job.impls[name].per_thread])
            return {failed for failed in itertools.chain(mine, theirs) if failed}

    def _make_current(self) -> None:
        """Make the device's context current in a new thread, which is to disturb nobody's capture.

        Taking memory from PyTorch's cache doesn't do the former, and cuBLASLt and TMA descriptors fail without it.
        """
        leave_captures_alone()
        with torch.cuda.device(self._device):
            torch.cuda.current_stream().synchronize()

    def _measured(self, jobs: Sequence[Job], broken: set[tuple[str, str]], progress: _Progress) -> dict[str, Choice]:
        """The fastest impl of each job, by its key."""
        if not jobs:
            return {}
        with self._backend.scratch():
            return {
                job.key: Choice(job.key, job.family, job.size, *self._fastest(job, broken, progress)) for job in jobs
            }

    def _fastest(self, job: Job, broken: set[tuple[str, str]], progress: _Progress) -> tuple[str, float]:
        """The fastest impl of ``job`` and its seconds, or 0. Impls that fail are added to ``broken``."""
        working = {name: impl for name, impl in job.impls.items() if (job.key, name) not in broken}
        if len(working) < 2:
            return next(iter(working), REFERENCE), 0.0
        with torch.no_grad():
            args, kwargs = job.example(self._device)
            times: dict[str, float] = {}
            for name, impl in working.items():
                try:
                    times[name] = self._stopwatch.seconds(
                        partial(impl.launch, *args, **kwargs), min(times.values(), default=float("inf"))
                    )
                except Exception as error:
                    _log_failure(job, name, error)
                    broken.add((job.key, name))
                progress.one_more()
        log.debug("%s: %s", job.key, ", ".join(f"{name} {seconds * 1e6:.1f} us" for name, seconds in times.items()))
        fastest = min(times, key=lambda name: times[name], default=REFERENCE)
        seconds = times.get(fastest, 0.0)
        return fastest, seconds if math.isfinite(seconds) else 0.0


def _log_failure(job: Job, name: str, error: Exception) -> None:
    log.debug("%s of %s failed: %s", name, job.key, error)
