"""Decides between the impls of an op by timing them once on its shape, and compiles their kernels side by side before
that.
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import torch
from torch.utils import _pytree

from ..machine.choices import Choice, Choices, times_apart
from .backend import Backend
from .compile_only import CompileOnly
from .stopwatch import Stopwatch

REFERENCE = "reference"
#: What a call may take of its program's time for the choice of another size to be taken over, times the square root of
#: how many times as large or small that is. From SD1.5's 512x512 to 12 others this costs 1.1% of a step in the mean and
#: 1.8 at most, from SDXL's 1024x1024 0.9 and 2.3 (H100, docs/notes/0019).
_STAKE = 0.02
_THREADS = 8
#: what the examples of all threads but the calling one may take together; a larger one runs alone
_EXAMPLE_BYTES = 256 * 2**20
_FILLED_AT_ONCE = 2**22  #: numbers of a float of 8 bits
_INNERMOST = {4: torch.channels_last, 5: torch.channels_last_3d}
log = logging.getLogger("fast_compile")


class Candidate(Protocol):
    """An impl as the tuner sees it."""

    @property
    def name(self) -> str: ...

    @property
    def launch(self) -> Callable[..., Any]: ...

    @property
    def carries_over(self) -> bool: ...

    @property
    def per_thread(self) -> bool: ...


class Job:
    """One op call to decide: its key on disk, the impls that can compute it, and its arguments as meta tensors.

    Calls of one ``family`` are decided the more alike the nearer their ``size``, in proportion to which they take time.
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
        self.family, self.size = family or key, max(1, size)
        self.impls = {impl.name: impl for impl in impls}
        self._args, self._kwargs = args, kwargs
        self._channels_last = channels_last

    @property
    def bytes(self) -> int:
        """The size of the arguments, with what lies between their rows, and about that of the results."""
        leaves = [leaf for leaf in _pytree.tree_leaves((self._args, self._kwargs)) if isinstance(leaf, torch.Tensor)]
        # what is made of numbers of 8 bits has 16
        return sum(leaf.nbytes + max(2, leaf.itemsize) * _span(leaf) for leaf in leaves)

    def example(self, device: torch.device, filled: bool = True) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Random arguments of these shapes. Not zeros: they run faster than real data.

        The global generators stay as they are.

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
            if self._channels_last and meta.dim() in _INNERMOST:
                tensor = torch.empty(meta.shape, dtype=meta.dtype, device=device, memory_format=_INNERMOST[meta.dim()])
            if not tensor.is_floating_point() and tensor.dtype != torch.int8:
                return tensor.zero_()  # always: they may be indices
            return tensor if generator is None else _random(tensor, generator)

        return tuple(make(arg) for arg in self._args), {name: make(arg) for name, arg in self._kwargs.items()}


def _random(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """``tensor``, filled with what quantised weights look like where it is of 8 bits."""
    if tensor.dtype == torch.int8:
        return tensor.random_(-127, 128, generator=generator)
    if tensor.itemsize > 1:
        return tensor.normal_(generator=generator)
    _fill(tensor, generator)
    return tensor


def _fill(tensor: torch.Tensor, generator: torch.Generator) -> None:
    """A float of 8 bits, of which PyTorch draws no random numbers: they are drawn in 16, a part at a time, since those
    take memory, too.
    """
    along = next((dim for dim, size in enumerate(tensor.shape) if size > 1), None)
    if along is not None and tensor.numel() > _FILLED_AT_ONCE:
        for half in tensor.chunk(2, along):
            _fill(half, generator)
    else:
        tensor.copy_(
            torch.empty(tensor.shape, dtype=torch.float16, device=tensor.device).normal_(std=16.0, generator=generator)
        )


def _span(tensor: torch.Tensor) -> int:
    """How many elements there are from the first of ``tensor`` to its last."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


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
        self._stopwatch = Stopwatch(backend)
        self._choices = choices
        self._measure = measure

    def decide(self, jobs: Sequence[Job]) -> list[str]:
        """The name of the impl to take for each job. Also compiles every kernel that the chosen impls need.

        An impl that fails here is never taken; where all fail it is the reference.
        """
        distinct = {job.key: job for job in jobs if job.impls}
        chosen = self._known(distinct, Counter(job.key for job in jobs))
        start = time.perf_counter()
        broken = self._start(distinct.values(), chosen)
        started = time.perf_counter()
        measured = self._measured([job for key, job in distinct.items() if key not in chosen], broken)
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
        """The choices that needn't be measured, by the key of the job, which occurs ``count`` times."""
        expected = {key: found for key, job in jobs.items() if (found := self._expected(job)) is not None}
        whole = sum(count[key] * choice.seconds for key, (choice, _) in expected.items())
        return {
            key: choice
            for key, (choice, apart) in expected.items()
            if count[key] * choice.seconds * math.sqrt(apart) <= _STAKE * whole
        }

    def _expected(self, job: Job) -> tuple[Choice, float] | None:
        """What would be chosen unmeasured, and from how many times as large or small a call it is taken over; 0 if from
        none.
        """
        if len(job.impls) == 1 or not self._measure:
            return Choice(job.key, job.key, job.size, next(iter(job.impls)), 0.0), 0.0
        kept = self._choices.get(job.key)
        if kept is not None and kept.impl in job.impls:
            return kept, 0.0
        near = self._choices.nearest(job.family, job.size)
        if near is None or near.impl not in job.impls or not job.impls[near.impl].carries_over:
            return None
        # Of a family of its own: taken over again and again it would go far from where it was measured.
        taken_over = Choice(job.key, job.key, job.size, near.impl, near.seconds * job.size / near.size)
        return taken_over, times_apart(job.size, near.size)

    def _start(self, jobs: Iterable[Job], chosen: Mapping[str, Choice]) -> set[tuple[str, str]]:
        """Launch each impl in question once, in threads: Triton's passes, ptxas and the driver's loading of kernels run
        outside the interpreter's lock.

        What another thread couldn't use is launched in this one meanwhile. Returns the (job, impl) pairs that failed.
        """
        pairs = [
            (job, name)
            for job in jobs
            for name in ([chosen[job.key].impl] if job.key in chosen else job.impls)
            if name != REFERENCE
        ]
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

        def launch_in_turn(pair: tuple[Job, str]) -> tuple[str, str] | None:
            with memory.held(pair[0].bytes):
                return launch(pair)

        with ThreadPoolExecutor(_THREADS, initializer=self._make_current) as threads:
            theirs = threads.map(launch_in_turn, [(job, name) for job, name in pairs if not job.impls[name].per_thread])
            mine = map(launch, [(job, name) for job, name in pairs if job.impls[name].per_thread])
            return {failed for failed in itertools.chain(mine, theirs) if failed}

    def _make_current(self) -> None:
        """Make the device's context that of a new thread.

        Memory from PyTorch's cache doesn't, and cuBLASLt and TMA descriptors fail without.
        """
        with torch.cuda.device(self._device):
            torch.cuda.current_stream().synchronize()

    def _measured(self, jobs: Sequence[Job], broken: set[tuple[str, str]]) -> dict[str, Choice]:
        """The fastest impl of each job, by its key."""
        if not jobs:
            return {}
        with self._backend.scratch():
            return {job.key: Choice(job.key, job.family, job.size, *self._fastest(job, broken)) for job in jobs}

    def _fastest(self, job: Job, broken: set[tuple[str, str]]) -> tuple[str, float]:
        """The impl of ``job`` that takes the least time, and how many seconds, 0 if that isn't known.

        Those that fail are added to ``broken``.
        """
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
        log.debug("%s: %s", job.key, ", ".join(f"{name} {seconds * 1e6:.1f} us" for name, seconds in times.items()))
        fastest = min(times, key=lambda name: times[name], default=REFERENCE)
        seconds = times.get(fastest, 0.0)
        return fastest, seconds if math.isfinite(seconds) else 0.0


def _log_failure(job: Job, name: str, error: Exception) -> None:
    log.debug("%s of %s failed: %s", name, job.key, error)
