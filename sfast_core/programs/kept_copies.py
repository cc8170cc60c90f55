"""Chooses the streamed weights to keep on the device for a sampling, and tells whether a graph finds them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from ..runtime.graphs import DeviceGraphs
from ..runtime.streaming.kept import SMALL_BYTES, KeptWeights
from ..runtime.streaming.streamed import Streamed
from ..weights import Arriving, Weight
from .deployment import Deployment

Given: TypeAlias = "torch.Tensor | Arriving"  #: a weight that is there, or one to be brought
_KEPT_PART = 2  # kept copies may take one in so many parts of the memory for weights


@dataclass(frozen=True)
class Bringing:
    """A stretch of a program some of whose weights are away.

    Attributes:
        streamed: brings them by a schedule of its own.
        brought: these weights, by place.
        numbers: by place, a weight's number in the program.
    """

    streamed: Streamed
    brought: dict[int, Arriving]
    numbers: dict[int, int]


def ring_share(whole: int) -> int:
    """The ring's share of the memory for weights."""
    return whole - whole // _KEPT_PART


class KeptCopies:
    """The kept copies that one program's graph reads. Not thread-safe: its caller holds the device's lock.

    Args:
        weights: all of the program's weights.
        there: where it runs. Its store tells in which period nobody writes to them, and has the copies for all
            programs; the device's graphs count their memory, and without these nothing is kept.
    """

    def __init__(self, weights: Sequence[Weight], there: Deployment) -> None:
        self._weights = weights
        self._store, self._device, self._graphs = there.store, there.device, there.graphs
        self._read_at: dict[int, int] = {}  # the address that the graph reads, by the weight's number
        self.copies: KeptWeights | None = None
        self.period: Hashable = None  #: the period in which they were made

    @property
    def bytes(self) -> int:
        """The size of all the store's copies, if the graph reads some."""
        return self.copies.bytes if self.copies is not None else 0

    @property
    def alive(self) -> bool:
        """Whether the copies that the graph reads are there."""
        return not self._read_at or (self.copies is not None and self.copies.alive)

    def keep(self, given: list[Given], stretches: Sequence[Bringing], whole: int, user: object) -> None:
        """Replace some of ``given`` by kept copies, for a new graph.

        Args:
            given: the program's weights.
            stretches: those that read weights which are away.
            whole: the most bytes for the ring and the copies together.
            user: of the ring.
        """
        before, self.copies, self._read_at, self.period = self.copies, None, {}, self._store.period()
        if stretches and self.period is not None and self._graphs is not None:
            kept = self.copies = self._of_store(self._graphs)
            for index in self._chosen(kept, stretches, whole, user, self._graphs):
                weight = given[index]
                assert isinstance(weight, Arriving)
                given[index] = tensor = kept.tensor(weight, self._device, self.period, self._graphs.backend.synchronise)
                self._read_at[index] = tensor.data_ptr()
        self._let_go(before)

    def copy_of(self, index: int, weight: Arriving) -> torch.Tensor | None:
        """The copy that the graph reads for the weight of this number; None where the graph brings it."""
        if index not in self._read_at or self.copies is None or self._graphs is None:
            return None
        return self.copies.tensor(weight, self._device, self.period, self._graphs.backend.synchronise)

    def still(self, weights: Sequence[Given]) -> bool:
        """Whether the copies are where the graph reads them. In a new period they are made anew at these addresses."""
        period = self._store.period()
        if (period is None) != (self.period is None):
            return False
        if self._read_at:
            if self.copies is None or not self.copies.alive or self._graphs is None:
                return False
            for index, address in self._read_at.items():
                weight = weights[index]
                if not isinstance(weight, Arriving) or self.copies.address(weight.weight) != address:
                    return False
                if (
                    self.copies.tensor(weight, self._device, period, self._graphs.backend.synchronise).data_ptr()
                    != address
                ):
                    return False
        self.period = period
        return True

    def release(self) -> None:
        """To be told that the graph is released. Copies are released with the last graph that reads them."""
        before, self.copies, self._read_at, self.period = self.copies, None, {}, None
        self._let_go(before)

    def _chosen(
        self, kept: KeptWeights, stretches: Sequence[Bringing], whole: int, user: object, graphs: DeviceGraphs
    ) -> list[int]:
        """The weights to keep: those kept already, those too large for the ring, small ones, then those read first."""
        share = ring_share(whole)
        sizes = {each.numbers[place]: weight.nbytes for each in stretches for place, weight in each.brought.items()}
        order = list(
            dict.fromkeys(each.numbers[place] for each in stretches for place in each.streamed.order(each.brought))
        )
        chosen = [index for index in order if self._weights[index] in kept]

        def ring(*more: int) -> int:
            without = {*chosen, *more}
            rests = (
                (each, {place: weight for place, weight in each.brought.items() if each.numbers[place] not in without})
                for each in stretches
            )
            return max((each.streamed.least(rest) for each, rest in rests), default=0)

        held = sum(sizes[index] for index in chosen)
        for index in sorted(set(order) - set(chosen), key=lambda index: -sizes[index]):
            if ring() <= share or held + sizes[index] + ring(index) > whole:
                break
            chosen.append(index)
            held += sizes[index]
        graphs.release_ring(user, share)
        room = whole - max(ring(), share, graphs.ring_bytes)
        for index in sorted(order, key=lambda index: sizes[index] > SMALL_BYTES):
            if index not in chosen and held + sizes[index] <= room:
                chosen.append(index)
                held += sizes[index]
        return chosen

    def _of_store(self, graphs: DeviceGraphs) -> KeptWeights:
        kept = self._store.kept
        if kept is None or not kept.alive:
            kept = self._store.kept = KeptWeights()
            graphs.hold(kept, self._store)
        graphs.touch(kept)
        kept.users.add(self)
        return kept

    def _let_go(self, kept: KeptWeights | None) -> None:
        if kept is not None and kept is not self.copies and self._graphs is not None:
            kept.users.discard(self)
            if not kept.users:
                self._graphs.release(kept)
