"""Values that follow from nothing: from ``zeros``, ``arange`` and the like, by functions that do the same at each call.

What code reads of these, and shapes that depend on them, are the same at each call of a signature.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch.fx import Node

from .leaf import Leaf
from .nodes import is_live
from .values import UNFILLED

#: Functions that return a value of a tensor's, and not where it lies.
READING = frozenset("item tolist __bool__ __int__ __float__ __index__ is_nonzero equal allclose __contains__".split())


class Unvarying:
    """Tells which nodes of a graph are such values."""

    def __init__(self) -> None:
        self._known: dict[Node, bool] = {}

    def all(self, nodes: Iterable[Node]) -> bool:
        """Whether all of these nodes are such values."""
        return all(map(self._is, nodes))

    def _is(self, node: Node) -> bool:
        """Their arguments are asked first, without recursion: a chain may be as long as a graph."""
        waiting = [node]
        while waiting:
            asked = waiting[-1]
            if asked in self._known:
                waiting.pop()
            elif not _computes(asked):
                self._known[asked] = False
            elif unknown := [each for each in asked.all_input_nodes if each not in self._known]:
                waiting += unknown
            else:
                self._known[asked] = all(map(self._known.__getitem__, asked.all_input_nodes))
        return self._known[node]


def _computes(node: Node) -> bool:
    """Whether a node is a function of its arguments alone. Memory that nobody has filled holds anything."""
    if node.op not in ("call_function", "call_method") or is_live(node) or isinstance(node.target, Leaf):
        return False
    return not getattr(node.target, "__name__", str(node.target)).startswith(UNFILLED)
