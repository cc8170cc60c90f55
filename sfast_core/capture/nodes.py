"""What is done with the nodes of a graph, whoever makes it."""

from __future__ import annotations

import builtins
import keyword
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node


class _Names(torch.fx.graph._Namespace):
    """FX's names, without a regular expression for each of those that can be taken as they are: 10 us a node, for
    SDXL's 6,400.
    """

    def create_name(self, candidate: str, obj: object | None) -> str:
        """A name that no other node has, made of ``candidate``: the same as FX's."""
        if (
            obj is not None
            or candidate in _ILLEGAL
            or candidate[-1:].isdigit()
            or not (candidate.isascii() and candidate.isidentifier())
        ):
            return super().create_name(candidate, obj)
        name, number = candidate, self._base_count.get(candidate, 0)
        while name in self._used_names:
            number += 1
            name = f"{candidate}_{number}"
        self._used_names.add(name)
        self._base_count[candidate] = number
        return name


_ILLEGAL = frozenset({*keyword.kwlist, *vars(builtins), *torch.fx.graph._custom_builtins})


def new_graph() -> Graph:
    """A graph to record into."""
    graph = Graph()
    if not hasattr(graph._graph_namespace, "_unassociated_names"):  # of older versions (2.6), which ask for more
        graph._graph_namespace = _Names()
    return graph


def call_function(
    graph: Graph, function: Callable[..., Any], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
) -> Node:
    """As ``graph.call_function``, without its search for SymInts among the arguments, which are none here.

    FX searches what a node is made with, not what it is given afterwards: 26 us a node and 18 (torch 2.13), and SDXL's
    take 6,400.
    """
    # FX's own choice, which it makes lower case by a regular expression: 4 us
    name = getattr(function, "__name__", None)
    return _given(graph.create_node("call_function", function, name=name), args, kwargs)


def call_method(graph: Graph, name: str, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Node:
    """As ``graph.call_method``, without its search for SymInts among the arguments."""
    return _given(graph.create_node("call_method", name, name=name), args, kwargs)


def _given(node: Node, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Node:
    node.args = args
    if kwargs:
        node.kwargs = kwargs
    return node


def function_of(node: Node) -> Callable[..., Any]:
    """What computes a node of its arguments: its function, or what calls its method on the first of them."""
    return node.target if callable(node.target) else _Method(str(node.target))


@dataclass(frozen=True)
class _Method:
    """Equal to any other of its name: who asks whether the same was computed before has to be told so."""

    name: str

    def __call__(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(x, self.name)(*args, **kwargs)


def take_apart(graph: Graph) -> None:
    """Let a graph go that nobody needs any more, and its nodes.

    They refer to one another in circles. Left to the collector, SDXL's are 40,000 objects that it walks ten times over:
    120 ms, so 60.
    """
    # held until all are erased: each would else take the one before it along, as deep as the graph is long
    nodes = list(graph.nodes)
    for node in reversed(nodes):
        graph.erase_node(node)
    vars(graph).clear()  # it also knows by name what was erased long ago


def is_live(node: Node) -> bool:
    """Whether a node calls code that runs live, at its place in the order of these: it may do anything besides
    returning something.
    """
    return bool(getattr(node.target, "live", False))


def drop_unused(graph: Graph) -> int:
    """Remove calls whose results nobody uses.

    A traced graph has no side effects, so all of them may go, but for those of live code.
    """
    unused = 0
    for node in reversed(graph.nodes):
        if not node.users and node.op not in ("placeholder", "output") and not is_live(node):
            graph.erase_node(node)
            unused += 1
    return unused
