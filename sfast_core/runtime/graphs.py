"""The CUDA graphs of one device, under a common budget of memory.

All graphs of a device share one memory pool, so their intermediate results share memory, and one lock: inputs are
copied in, the graph is replayed and results are copied out before the next one may run. A graph's size is by how much
the driver's free memory shrank at capture: torch's own counters don't move then under cudaMallocAsync.
"""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch

from ..machine.forks import renew_in_children
from .backend import Backend, CudaBackend
from .captured import Captured, Written
from .holding import Holding
from .rehearsal import Shown
from .streaming.ring import Ring

Tensors = Sequence[torch.Tensor]
T = TypeVar("T")


class DeviceGraphs:
    """The captured graphs of one device, with a lock and a budget in bytes; the least recently used is evicted first.

    Attributes:
        lock: held while any of them runs or is captured.
        backend: captures them.
        captures: how many were captured.
        evictions: how many were released again.
    """

    def __init__(self, backend: Backend) -> None:
        self.lock = threading.RLock()
        renew_in_children(self)
        self.backend = backend
        self._graphs: OrderedDict[int, Holding] = OrderedDict()
        self._of_the_parent: list[Holding] = []
        self.captures = 0
        self.evictions = 0

    def renew(self) -> None:
        """Start empty in a forked child: the lock's thread isn't there, and only the parent can release its graphs."""
        self.lock = threading.RLock()
        for graph in self._graphs.values():
            graph.alive = False
        self._of_the_parent += self._graphs.values()
        self._graphs.clear()

    @property
    def bytes(self) -> int:
        """The size of all graphs."""
        return sum(graph.bytes for graph in self._graphs.values())

    def capture(
        self,
        inputs: Tensors,
        run: Callable[[Tensors], Tensors],
        budget_bytes: int | None,
        owner: object = None,
        instead_of: Holding | None = None,
        written: Written | None = None,
        shown: Shown = None,
    ) -> Captured:
        """Capture ``run`` on static copies of ``inputs``, and evict others until the budget holds.

        Args:
            inputs: the call's tensors.
            run: the computation.
            budget_bytes: what all graphs may hold. None: what they hold now and a third of what is free.
            owner: the graph is released when this object is freed, which isn't kept alive by that.
            instead_of: a graph of the same computation, which the new one replaces in its memory.
            written: the inputs that the computation writes into.
            shown: what is known of the computation.

        Raises:
            RuntimeError: it can't be captured. Out of memory is tried once more, after releasing all other graphs.
        """
        with self.lock:
            budget = self._budget(budget_bytes)
            try:
                captured = Captured(self.backend, inputs, run, written, shown)
            except torch.cuda.OutOfMemoryError:
                if not self.release_all():
                    raise
                captured = Captured(self.backend, inputs, run, written)
            self._keep(captured, budget, owner, instead_of)
            return captured

    def adopt(
        self,
        make: Callable[[], tuple[Holding, T]],
        budget_bytes: int | None,
        owner: object,
        instead_of: Holding | None = None,
    ) -> tuple[Holding, T]:
        """Keep what ``make()`` captures by itself; it returns that and any other object, as this does.

        For the other arguments see :meth:`capture`.
        """
        with self.lock:
            budget = self._budget(budget_bytes)
            captured, result = make()
            self._keep(captured, budget, owner, instead_of)
            return captured, result

    def touch(self, captured: Holding) -> None:
        """Mark a graph as the one that was used last."""
        self._graphs.move_to_end(id(captured))

    def _budget(self, budget_bytes: int | None) -> int:
        return self.bytes + self.backend.free_bytes() // 3 if budget_bytes is None else budget_bytes

    def _keep(self, captured: Holding, budget: int, owner: object, instead_of: Holding | None) -> None:
        self.captures += 1
        # no trim of the allocator here: a LoRA replaces a graph, and the host's cached memory would be lost each time
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
        """The size of the ring for weights that are streamed; 0 without one."""
        return max((ring.bytes for ring in self._rings()), default=0)

    def ring(self, device: torch.device, size: int) -> Ring:
        """The ring for streamed weights, of at least ``size`` bytes; a smaller one and its graphs are released.

        Raises:
            RuntimeError: memory ran out, even after releasing all graphs.
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
        """Release a ring of more than ``size`` bytes that nobody but ``user`` uses."""
        with self.lock:
            self._release(
                [ring for ring in self._rings() if ring.bytes > size and not ring.busy and not set(ring.users) - {user}]
            )

    def _rings(self) -> list[Ring]:
        return [kept for kept in self._graphs.values() if isinstance(kept, Ring)]

    def hold(self, kept: Holding, owner: object) -> None:
        """Count other memory that graphs read, and evict it like graphs. It is released when ``owner`` is freed."""
        with self.lock:
            self._graphs[id(kept)] = kept
            kept.go_with(owner, self.release)

    def replay(
        self, captured: Captured, inputs: Tensors, deliver: Callable[[Tensors], list[torch.Tensor]]
    ) -> list[torch.Tensor]:
        """Copy ``inputs`` in, replay, and return what ``deliver`` makes of the results, under the lock."""
        with self.lock:
            self._graphs.move_to_end(id(captured))
            with self.in_turn():
                return deliver(captured.replay(inputs))

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """A context in which the caller's stream uses the shared memory."""
        self.backend.enter()
        try:
            yield
        finally:
            self.backend.leave()

    def evict(self, wanted_bytes: int, keep: Holding | None = None) -> int:
        """Release the least recently used graphs until that gives ``wanted_bytes``. Returns the bytes released."""
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
    """The graphs of a CUDA device, one object for all compiled modules. None: nothing is captured on this device."""
    return DeviceGraphs(CudaBackend(device)) if device.type == "cuda" else None
