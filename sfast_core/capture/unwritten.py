"""Memory from ``torch.empty`` that a recorded call computes with though nothing that was recorded writes to it: kernels
that torch doesn't dispatch did.
"""

from __future__ import annotations

from torch.fx import Graph, Node

from .calls import function_name
from .functional import cast_like, setitem
from .values import UNFILLED


def unwritten(graph: Graph) -> Node | None:
    """The first such memory in a graph, or None."""
    for node in graph.nodes:
        uninitialised = node.op in ("call_function", "call_method") and function_name(node.target).startswith(UNFILLED)
        if uninitialised and not all(map(_ignores_first, node.users)):
            return node
    return None


def _ignores_first(node: Node) -> bool:
    """Whether a call uses its first argument for its shape, or as the rest that an assignment leaves: never for a value
    of its own.
    """
    if node.target is cast_like:
        return all(map(_ignores_first, node.users))
    return node.target is setitem or (function_name(node.target) == "baddbmm" and node.kwargs.get("beta") == 0)
