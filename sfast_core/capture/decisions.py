"""Decisions of a forward by its inputs' values: whether a mask has padding, say. A trace holds where they come out as they did.

What is read has to follow from the call's arguments by few operations, without weights: these are run once more at each call, before its program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_aggregate

from .autocast import autocast_off
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
    """Those of one recorded call, in order, with the operations that they follow from.

    Args:
        inputs: the nodes of the call's tensors.
    """

    def __init__(self, inputs: Sequence[Node]) -> None:
        self._count = len(inputs)
        self._places: dict[Node, int] = {node: place for place, node in enumerate(inputs)}
        self._steps: list[_Step] = []

    def __bool__(self) -> bool:
        return bool(self._steps)

    def add(self, function: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> bool:
        """Note that ``function``, of this name, has returned ``result``; False where that is no decision that can be made again.

        ``args`` and ``kwargs``: with nodes in the place of tensors.
        """
        if name not in _READING or type(result) is not bool:
            return False
        nodes: list[Node] = []
        torch.fx.node.map_arg((args, kwargs), nodes.append)
        leading = self._leading_to(nodes)
        if leading is None:
            return False
        for node in leading:
            self._steps.append(_Step(function_of(node), self._placed(node.args), self._placed(node.kwargs)))
            self._places[node] = self._count + len(self._steps) - 1
        self._steps.append(_Step(function, self._placed(args), self._placed(kwargs), result))
        return True

    def expect(self, place: int, question: Callable[[torch.Tensor], bool]) -> None:
        """Note that the answer to ``question``, of the input in this place, was yes."""
        self._steps.append(_Step(question, (_At(place),), {}, True))

    def finish(self) -> None:
        """The call is over: let go of its graph."""
        self._places = {}

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
        """What isn't there yet of the operations that these nodes are the last of, in an order to run them; None where that isn't to be done."""
        found: dict[Node, None] = {}
        waiting = [(node, False) for node in reversed(nodes)]
        seen: set[Node] = set()
        while waiting:
            node, done = waiting.pop()
            if done:
                found[node] = None
            elif node not in self._places and node not in seen:
                seen.add(node)
                if node.op not in ("call_function", "call_method") or is_live(node) or isinstance(node.target, Leaf) or len(seen) > _MOST:
                    return None
                waiting.append((node, True))
                waiting += [(each, False) for each in node.all_input_nodes]
        return list(found) if len(self._steps) + len(found) <= _MOST else None

    def _placed(self, value: Any) -> Any:
        return map_aggregate(value, lambda leaf: _At(self._places[leaf]) if isinstance(leaf, Node) else leaf)


def _filled(value: Any, values: list[Any]) -> Any:
    return map_aggregate(value, lambda leaf: values[leaf.place] if isinstance(leaf, _At) else leaf)
