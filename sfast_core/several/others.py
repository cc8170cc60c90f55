"""What one module has on the other devices: copies of its weights, and reports."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from ..programs.deployment import Deployment
from ..reporting.report import ModuleReport
from ..reporting.reporter import Reporter
from ..runtime.any_store import Store
from ..runtime.graphs import DeviceGraphs
from ..weights import WeightsElsewhere
from .replica import ReplicaStore

_SPARE_BYTES = 1 << 29  #: to be free beside the copies of weights, for what programs compute
_GIB = 2**30


class Others:
    """What one module has on other devices, by their numbers from 1 on; 0 is the module's own device.

    Args:
        store: of the module's weights.
        reporter: the module's.
        graphs_of: gives a device's graphs.

    Attributes:
        make_room: asks the host to free this many bytes on a device.
    """

    def __init__(
        self, store: Store, reporter: Reporter, graphs_of: Callable[[torch.device], DeviceGraphs | None]
    ) -> None:
        self.make_room: Callable[[int, torch.device], None] | None = None
        self.graphs_of = graphs_of
        self._store, self._reporter = store, reporter
        self._replicas: dict[int, ReplicaStore] = {}
        self._reporters: dict[torch.device, Reporter] = {}

    def __bool__(self) -> bool:
        return bool(self._replicas)

    def replica(self, index: int, here: torch.device, there: torch.device) -> ReplicaStore:
        """The copies of weights on a device."""
        if index not in self._replicas:
            room = weakref.WeakMethod(self._room)  # this has the store

            def take(size: int) -> None:
                room()(size, there)  # type: ignore[misc]

            self._replicas[index] = ReplicaStore(self._store, here, there, self.lock(there), take)
        return self._replicas[index]

    def reporter(self, there: torch.device) -> Reporter:
        """The reporter for what runs on a device."""
        if there not in self._reporters:
            own = self._reporter.report
            self._reporters[there] = Reporter(ModuleReport(f"{own.name} on {there}", str(there), host=own.host))
            self._reporters[there].may_say = lambda: False  # the module's own reporter says it already
        return self._reporters[there]

    def deployment(self, index: int, here: torch.device, there: torch.device) -> Deployment:
        """Where the module's programs run on a device."""
        store = self.replica(index, here, there) if index else self._store
        return Deployment(there, self.graphs_of(there), store, self.reporter(there))

    def lock(self, device: torch.device) -> AbstractContextManager[Any]:
        """The lock of a device's graphs."""
        graphs = self.graphs_of(device)
        return graphs.lock if graphs is not None else nullcontext()

    @property
    def bytes(self) -> int:
        """The size of all copies."""
        return sum(replica.bytes for replica in self._replicas.values())

    def words(self) -> str:
        """The size of all copies in words, for the report."""
        words = f"copies of the weights take {self.bytes / _GIB:.1f} GiB"
        if self._store.copies.unwritten is not None:
            return words
        return f"{words} and are made at each call, outside of a sampling"

    def held(self) -> list[tuple[DeviceGraphs | ReplicaStore | None, torch.device]]:
        """What takes memory on the other devices, and could be evicted: all graphs, and this module's copies."""
        pairs = [(replica, replica.device) for replica in self._replicas.values()]
        return [each for replica, device in pairs for each in ((self.graphs_of(device), device), (replica, device))]

    def release(self) -> None:
        """Release the copies."""
        for replica in self._replicas.values():
            replica.release_all()
        self._replicas.clear()

    def _room(self, size: int, there: torch.device) -> None:
        """Make room for ``size`` bytes of weights. Raises :class:`WeightsElsewhere` where there isn't enough."""
        self._reporter.say(f"copies {size / _GIB:.1f} GiB of weights to {there}")
        if there.type != "cuda":
            return
        if self.make_room is not None:
            self.make_room(size + _SPARE_BYTES, there)
        free = (
            torch.cuda.mem_get_info(there)[0] + torch.cuda.memory_reserved(there) - torch.cuda.memory_allocated(there)
        )
        if free < size + _SPARE_BYTES:
            raise WeightsElsewhere(
                f"{there} has {free / _GIB:.1f} GiB free, and its weights need {size / _GIB:.1f} GiB"
            )
