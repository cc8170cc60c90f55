"""What is to be done again at each call besides computing its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from ..call_tensors import CallTensors, Leaf, found_in
from ..errors import CaptureError
from .kinds import Kind, kind_of
from .made import Made, taken_apart


class KeptByHost(NamedTuple):
    """What a host changes for itself while a call runs: no effect of the call, and nothing that steers it.

    Attributes:
        attributes: of modules, by name: those that it sets whenever it brings weights.
        tables: in which it remembers what it has found out.
    """

    attributes: frozenset[str] = frozenset()
    tables: tuple[dict[Any, Any], ...] = ()


@dataclass(frozen=True)
class _Write:
    """One thing to do again. ``leaves`` of ``tree`` say which tensor each is, or are constants."""

    do: Callable[[Any], None]
    tree: Made
    leaves: tuple[tuple[Leaf | None, Any], ...]


class Effects:
    """What is to be done again at each call, in order.

    Args:
        options: the recorded call's own, as its forward got them; each call leaves its own in their place.

    Attributes:
        targets: the ids of what is written to: these have to stay the very objects.
        handed: what puts a call's options where the recorded call has put its own.
        written: what is written to and found by the ways to it, until these are known.
        returning: the places of what the call has read and changed.
    """

    def __init__(self, options: Any = None) -> None:
        self.targets: set[int] = set()
        self.handed: list[Callable[[Any], None]] = []
        self.written: list[Any] = []
        self.by_place = False  # some of it is written to what another call finds
        self.returning: set[tuple[int, Any]] = set()
        self._options = options
        self._writes: list[_Write] = []

    def __bool__(self) -> bool:
        return bool(self._writes)

    def within(self, other: Effects) -> bool:
        """Whether another call leaves these, too, whatever it computes: plain values at places where it leaves the
        same. What is there already isn't left.
        """
        mine, theirs = ([(write.tree, write.leaves) for write in each._writes] for each in (self, other))
        return (
            not (self.handed or self.by_place)
            and self.targets <= other.targets
            and all(each in theirs and all(which is None for which, _ in each[1]) for each in mine)
        )

    def add(self, target: Any, do: Callable[[Any], None], value: Any, of_call: CallTensors) -> bool:
        """Note that ``do(value)`` is to be repeated, which writes to ``target``, or where that is None to what nobody
        exchanges.

        ``of_call`` tells which of the call's tensors is which. False where the value can't be made again.
        """
        if target is not None:
            self.targets.add(id(target))
        if self.are_options(value):
            self.handed.append(do)
            return True
        leaves, tree = taken_apart(value)
        found: list[tuple[Leaf | None, Any]] = []
        for leaf in leaves:
            if type(leaf) in (torch.Tensor, torch.nn.Parameter):
                try:
                    found.append((of_call.of(leaf), None))
                except CaptureError:
                    return False
            elif kind_of(leaf) is Kind.VALUE:
                found.append((None, leaf))
            else:
                return False
        self._writes.append(_Write(do, tree, tuple(found)))
        return True

    def are_options(self, value: Any) -> bool:
        """Whether it is the recorded call's own options."""
        return self._options is not None and value is self._options

    def hand_on(self, options: Any) -> None:
        """Leave a call's options where the recorded call has left its own."""
        for do in self.handed:
            do(options)

    def settle(self, of_call: CallTensors) -> None:
        """All of the call's tensors are known, and nothing of its own is kept."""
        self._options = None
        self.written.clear()
        self._writes = [
            replace(write, leaves=tuple((of_call.settled(which), constant) for which, constant in write.leaves))
            for write in self._writes
        ]

    def leaves_tensors(self) -> bool:
        """Whether any of it has tensors in it."""
        return any(which is not None for write in self._writes for which, _ in write.leaves)

    def repeat(self, tensors: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
        """Do it, with this call's ``inputs`` and what the graph has made of them."""
        for write in self._writes:
            leaves = [
                constant if which is None else found_in(which, tensors, inputs) for which, constant in write.leaves
            ]
            write.do(write.tree.build(leaves))
