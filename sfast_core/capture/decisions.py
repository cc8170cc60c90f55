"""Decisions of a forward by its inputs' values: whether a mask has padding, say.

A trace holds where they come out as they did.

What is read has to follow from the call's arguments by few operations, without weights: these are run once more at each
call, before its program.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_aggregate

from .autocast import autocast_off
from .compared import Number
from .leaf import Leaf
from .nodes import function_of, is_live

_READING = frozenset({"__bool__", "item", "is_nonzero", "equal", "allclose", "__contains__"})
_MOST = 64  # operations: a call waits for them


@dataclass(frozen=True)
class _At:
    """Stands for a value in the arguments of a step."""

    place: int


@dataclass(frozen=True)
class _Step:
    """One operation, or with ``expected`` one reading of a value."""

    function: Callable[..., Any]
    args: Any
    kwargs: Any
    expected: bool | None = None


class Decisions:
    """The decisions of one recorded call, in order, with the operations that they follow from.

    Args:
        inputs: the nodes of the call's tensors.
    """

    def __init__(self, inputs: Sequence[Node]) -> None:
        self._count = len(inputs)
        self._places: dict[Node, int] = {node: place for place, node in enumerate(inputs)}
        self._steps: list[_Step] = []
        self._known: dict[Hashable, int] = {}  # places of what was computed alike
        self._noted: set[Hashable] = set()

    def __bool__(self) -> bool:
        return bool(self._steps)

    def add(
        self, function: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> bool:
        """Note that ``function``, of this name, has returned ``result``; False where that is no decision that can be
        made again.

        ``args`` and ``kwargs``: with nodes in the place of tensors.
        """
        if name not in _READING or type(result) is not bool:
            return False
        nodes: list[Node] = []
        torch.fx.node.map_arg((args, kwargs), nodes.append)
        leading = self._leading_to(nodes)
        if leading is None:
            return False
        self._place(leading)
        self._steps.append(_Step(function, self._placed(args), self._placed(kwargs), result))
        return True

    def number(self, function: Callable[..., Any], args: tuple[Any, ...], result: Any) -> Number | None:
        """A number that ``function`` has read, in a form that tells what it is compared with; None where that can't be
        read again. Arguments as of :meth:`add`.
        """
        place = self._read(function, args, result)
        if place is None:
            return None
        number = Number(result)
        number.noted = functools.partial(self._compared, place)
        return number

    def compared(
        self, function: Callable[..., Any], args: tuple[Any, ...], result: Any, comparisons: list[tuple[str, float]]
    ) -> bool:
        """Note how these comparisons, by methods of the number that ``function`` has read, come out; False where it
        can't be read again.
        """
        place = self._read(function, args, result)
        if place is None:
            return False
        for name, other in comparisons:
            self._compared(place, name, other, getattr(float, name)(result, other))
        return True

    def _read(self, function: Callable[..., Any], args: tuple[Any, ...], result: Any) -> int | None:
        """The place of a number that ``function`` has read."""
        nodes: list[Node] = []
        torch.fx.node.map_arg((args,), nodes.append)
        leading = self._leading_to(nodes) if type(result) is float else None
        if leading is None:
            return None
        self._place(leading)
        return self._compute(function, self._placed(args), {})

    def _compared(self, place: int, name: str, other: Any, answer: bool) -> None:
        key = (place, name, type(other), other, answer)
        if key not in self._noted:
            self._noted.add(key)
            self._steps.append(_Step(getattr(float, name), (_At(place), other), {}, answer))

    def _place(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            self._places[node] = self._compute(function_of(node), self._placed(node.args), self._placed(node.kwargs))

    def _compute(self, function: Callable[..., Any], args: Any, kwargs: Any) -> int:
        """The place of what a function returns, which is there already where the same was computed before."""
        key: Hashable = (function, args, tuple(kwargs.items()))
        try:
            found = self._known.get(key)
        except TypeError:  # a list is among them
            key = found = None
        if found is None:
            self._steps.append(_Step(function, args, kwargs))
            found = self._count + len(self._steps) - 1
            if key is not None:
                self._known[key] = found
        return found

    def expect(self, place: int, question: Callable[[torch.Tensor], bool]) -> None:
        """Note that the answer to ``question``, of the input in this place, was yes."""
        self._steps.append(_Step(question, (_At(place),), {}, True))

    def finish(self) -> None:
        """The call is over: let go of its graph."""
        self._places = {}
        self._known.clear()
        self._noted.clear()

    def hold(self, inputs: Sequence[torch.Tensor]) -> bool:
        """Whether a call with these tensors decides as the recorded one did."""
        values: list[Any] = list(inputs)
        with torch.no_grad(), autocast_off():
            for step in self._steps:
                try:
                    values.append(step.function(*_filled(step.args, values), **_filled(step.kwargs, values)))
                except Exception:  # as it would in the forward, whose the error is to raise
                    return False
                if step.expected is not None and values[-1] is not step.expected:
                    return False
        return True

    def _leading_to(self, nodes: list[Node]) -> list[Node] | None:
        """What isn't there yet of the operations that these nodes are the last of, in an order to run them; None where
        that isn't to be done.
        """
        found: dict[Node, None] = {}
        waiting = [(node, False) for node in reversed(nodes)]
        seen: set[Node] = set()
        while waiting:
            node, done = waiting.pop()
            if done:
                found[node] = None
            elif node not in self._places and node not in seen:
                seen.add(node)
                if (
                    node.op not in ("call_function", "call_method")
                    or is_live(node)
                    or isinstance(node.target, Leaf)
                    or len(seen) > _MOST
                ):
                    return None
                waiting.append((node, True))
                waiting += [(each, False) for each in node.all_input_nodes]
        return list(found) if len(self._steps) + len(found) <= _MOST else None

    def _placed(self, value: Any) -> Any:
        return map_aggregate(value, lambda leaf: _At(self._places[leaf]) if isinstance(leaf, Node) else leaf)


def _filled(value: Any, values: list[Any]) -> Any:
    return map_aggregate(value, lambda leaf: values[leaf.place] if isinstance(leaf, _At) else leaf)
