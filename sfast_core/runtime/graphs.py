"""The CUDA graphs of one device: each with its inputs and outputs, and how many may be kept.

All graphs of a device share one memory pool and one lock, because their intermediate results share memory: one replay
at a time, its inputs copied in and its results copied out before the next. Bytes are what the driver lost, not what
torch counted: under cudaMallocAsync torch's counters don't move at capture.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from ..machine.forks import renew_in_children
from .backend import Backend, CudaBackend
from .holding import Holding
from .rehearsal import Rehearsal
from .streaming.ring import Ring

Tensors = Sequence[torch.Tensor]
T = TypeVar("T")


def static_like(x: torch.Tensor) -> torch.Tensor:
    """Memory for what is like ``x``: with dense strides kept and overlapping ones made dense, lazily conjugated or
    negated where ``x`` is.
    """
    static = torch.empty_like(x)
    static = static.conj() if x.is_conj() else static
    return torch._neg_view(static) if x.is_neg() else static


@contextlib.contextmanager
def in_use(kept: Sequence[Holding]) -> Iterator[None]:
    """Nobody may take these away for its length: what is being run or captured reads them beside its own memory."""
    before = [each.busy for each in kept]
    for each in kept:
        each.busy = True
    try:
        yield
    finally:
        for each, busy in zip(kept, before, strict=True):
            each.busy = busy


@dataclass(frozen=True)
class Written:
    """The inputs that a computation writes to.

    Attributes:
        inputs: which results are inputs, and which.
        there: whether they are written where the caller has them; if not, in a copy, which is copied back.
    """

    inputs: Mapping[int, int] = field(default_factory=dict)
    there: bool = False

    def addresses(self, inputs: Tensors) -> dict[int, int]:
        """Where those lie that are written where the caller has them, by number."""
        return {index: inputs[index].data_ptr() for index in self.inputs.values()} if self.there else {}


class Captured(Holding):
    """A graph with its static inputs and outputs, which lie outside its pool.

    Args:
        backend: captures it.
        inputs: of the call.
        run: the computation.
        rehearse: whether it isn't known yet that it can be captured.
        written: which inputs.

    Raises:
        RuntimeError: it can't be.
    """

    def __init__(
        self,
        backend: Backend,
        inputs: Tensors,
        run: Callable[[Tensors], Tensors],
        rehearse: bool = True,
        written: Written | None = None,
    ) -> None:
        self._written = written or Written()
        self._where = self._written.addresses(inputs)
        self._there = {index: weakref.ref(inputs[index]) for index in self._where}
        with torch.inference_mode(False):  # inference tensors refuse writes outside inference mode
            self._static = {index: static_like(x) for index, x in enumerate(inputs) if index not in self._where}
        self._results: dict[int, torch.Tensor] = {}
        self._copy_in(inputs)
        before = backend.free_bytes()
        self._replayable = backend.capture(
            lambda: self._copy_out(run(self.inputs)), warm_up=self._rehearsal(run) if rehearse else None
        )
        lost = max(0, before - backend.free_bytes())
        super().__init__(lost + sum(x.nbytes for x in (*self._static.values(), *self._results.values())))

    @property
    def inputs(self) -> list[torch.Tensor]:
        """What it reads. Of a tensor that is read where the caller has it no more than its address is kept."""
        found = [
            self._static[index] if index in self._static else self._there[index]()
            for index in range(len(self._static) + len(self._there))
        ]
        return [tensor for tensor in found if tensor is not None]

    @property
    def outputs(self) -> list[torch.Tensor]:
        """What it writes besides its inputs."""
        return list(self._results.values())

    def reads(self, inputs: Tensors) -> bool:
        """Whether these lie where it reads and writes them."""
        return all(inputs[index].data_ptr() == address for index, address in self._where.items())

    def replay(self, inputs: Tensors) -> Tensors:
        """Results for ``inputs``, which it has to :meth:`reads`, in memory that the next replay overwrites; those that
        are inputs are these.
        """
        self._copy_in(inputs)
        self._there = {index: weakref.ref(inputs[index]) for index in self._where}  # another one may lie there by now
        self._replayable.replay()
        written = self._written.inputs
        for index in set(written.values()) - self._where.keys():
            inputs[index].copy_(self._static[index])
        return [
            inputs[written[index]] if index in written else self._results[index]
            for index in range(len(self._results) + len(written))
        ]

    def release(self) -> None:
        """Give the graph's memory back."""
        super().release()
        self._replayable.release()
        self._static, self._results, self._there = {}, {}, {}

    def _rehearsal(self, run: Callable[[Tensors], Tensors]) -> Callable[[], None]:
        def rehearse() -> None:
            with Rehearsal():
                self._copy_out(run(self.inputs))

        return rehearse

    def _copy_out(self, results: Tensors) -> None:
        if not self._results:  # the warm-up makes them, outside the capture
            with torch.inference_mode(False):
                self._results = {
                    index: torch.empty_like(result)
                    for index, result in enumerate(results)
                    if index not in self._written.inputs
                }
        for index, mine in self._results.items():
            mine.copy_(results[index])

    def _copy_in(self, inputs: Tensors) -> None:
        for index, mine in self._static.items():
            mine.copy_(inputs[index])


class DeviceGraphs:
    """The captured graphs of one device: a lock, a budget in bytes, least recently used goes first."""

    def __init__(self, backend: Backend) -> None:
        self.lock = threading.RLock()
        renew_in_children(self)
        self.backend = backend
        self._graphs: OrderedDict[int, Holding] = OrderedDict()
        self._of_the_parent: list[Holding] = []
        self.captures = 0
        self.evictions = 0

    def renew(self) -> None:
        """In a forked child: the thread that holds the lock isn't there, and the graphs are the parent's, who alone can
        release them.
        """
        self.lock = threading.RLock()
        for graph in self._graphs.values():
            graph.alive = False
        self._of_the_parent += self._graphs.values()
        self._graphs.clear()

    @property
    def bytes(self) -> int:
        """What all graphs hold."""
        return sum(graph.bytes for graph in self._graphs.values())

    def capture(
        self,
        inputs: Tensors,
        run: Callable[[Tensors], Tensors],
        budget_bytes: int | None,
        owner: object = None,
        instead_of: Holding | None = None,
        known: bool = True,
        written: Written | None = None,
    ) -> Captured:
        """Capture ``run`` on static copies of ``inputs``, and evict others until the budget holds.

        Args:
            inputs: of the call.
            run: the computation.
            budget_bytes: what all graphs may hold; None: what they hold and a third of what is free.
            owner: an object that isn't held, with which the graph goes: the compiled state of a model that is deleted.
            instead_of: a graph of the same computation, which is released. The new one works in its memory.
            known: whether with that it is known that it can be captured.
            written: which inputs the computation writes to.

        Raises:
            RuntimeError: it can't be captured; an out-of-memory is tried once more with all other graphs released.
        """
        with self.lock:
            budget = self._budget(budget_bytes)
            try:
                captured = Captured(self.backend, inputs, run, instead_of is None or not known, written)
            except torch.cuda.OutOfMemoryError:
                if not self.release_all():
                    raise
                captured = Captured(self.backend, inputs, run, written=written)
            self._keep(captured, budget, owner, instead_of)
            return captured

    def adopt(
        self,
        make: Callable[[], tuple[Holding, T]],
        budget_bytes: int | None,
        owner: object,
        instead_of: Holding | None = None,
    ) -> tuple[Holding, T]:
        """Keep what ``make()`` has captured by itself, and returns beside something else.

        For the rest see :meth:`capture`.
        """
        with self.lock:
            budget = self._budget(budget_bytes)
            captured, result = make()
            self._keep(captured, budget, owner, instead_of)
            return captured, result

    def touch(self, captured: Holding) -> None:
        """It is used now: others go first."""
        self._graphs.move_to_end(id(captured))

    def _budget(self, budget_bytes: int | None) -> int:
        return self.bytes + self.backend.free_bytes() // 3 if budget_bytes is None else budget_bytes

    def _keep(self, captured: Holding, budget: int, owner: object, instead_of: Holding | None) -> None:
        self.captures += 1
        # not trimmed: the host's caches would go with it, at every LoRA
        if instead_of is not None and instead_of.alive:
            captured.bytes = max(captured.bytes, instead_of.bytes)
            self.backend.synchronise()
            self._graphs.pop(id(instead_of)).release()
        self._graphs[id(captured)] = captured
        if owner is not None:
            captured.go_with(owner, self.release)
        self.evict(self.bytes - budget, keep=captured)

    @property
    def ring_bytes(self) -> int:
        """The size of the ring that there is."""
        return max((ring.bytes for ring in self._rings()), default=0)

    def ring(self, device: torch.device, size: int) -> Ring:
        """The ring through which weights are streamed, of at least ``size`` bytes.

        One that is too small goes, and with it the graphs that use it.

        Raises:
            RuntimeError: an out-of-memory, also with all graphs released.
        """
        with self.lock:
            rings = self._rings()
            for ring in rings:
                if ring.bytes >= size:
                    self.touch(ring)
                    return ring
            self._release([ring for ring in rings if not ring.busy])
            try:
                made = Ring(device, size)
            except torch.cuda.OutOfMemoryError:
                if not self.release_all():
                    raise
                made = Ring(device, size)
            self._graphs[id(made)] = made
            return made

    def release_ring(self, user: object, size: int) -> None:
        """Give a ring of more than ``size`` bytes back that nobody uses but ``user``."""
        with self.lock:
            self._release(
                [ring for ring in self._rings() if ring.bytes > size and not ring.busy and not set(ring.users) - {user}]
            )

    def _rings(self) -> list[Ring]:
        return [kept for kept in self._graphs.values() if isinstance(kept, Ring)]

    def hold(self, kept: Holding, owner: object) -> None:
        """Count memory that graphs read beside their own, and take it away as them.

        It goes with its ``owner``, which isn't held.
        """
        with self.lock:
            self._graphs[id(kept)] = kept
            kept.go_with(owner, self.release)

    def replay(
        self, captured: Captured, inputs: Tensors, deliver: Callable[[Tensors], list[torch.Tensor]]
    ) -> list[torch.Tensor]:
        """Copy ``inputs`` in, replay, and ``deliver`` copies of the results, alone on the device's graphs."""
        with self.lock:
            self._graphs.move_to_end(id(captured))
            self.backend.enter()
            try:
                return deliver(captured.replay(inputs))
            finally:
                self.backend.leave()

    def evict(self, wanted_bytes: int, keep: Holding | None = None) -> int:
        """Release least recently used graphs until ``wanted_bytes`` are free; returns the bytes released."""
        with self.lock:
            victims, freed = [], 0
            for graph in self._graphs.values():
                if freed >= wanted_bytes:
                    break
                if graph is not keep and not graph.busy:
                    victims.append(graph)
                    freed += graph.bytes
            self._release(victims)
            return freed

    def release(self, captured: Holding) -> None:
        """Release one graph."""
        with self.lock:
            if captured.alive:
                self._release([captured])

    def release_all(self) -> int:
        """Release every graph that isn't being run; returns the bytes released."""
        with self.lock:
            victims = [graph for graph in self._graphs.values() if not graph.busy]
            self._release(victims)
            return sum(graph.bytes for graph in victims)

    def _release(self, victims: list[Holding]) -> None:
        if not victims:
            return
        self.backend.synchronise()
        for graph in victims:
            self._graphs.pop(id(graph), None)
            graph.release()
            self.evictions += 1
        self.backend.trim()


@functools.cache
def device_graphs(device: torch.device) -> DeviceGraphs | None:
    """The graphs of a CUDA device: one object per device, since its pool and its lock are shared by all compiled
    modules.

    None for any other device: nothing is captured there.
    """
    return DeviceGraphs(CudaBackend(device)) if device.type == "cuda" else None
