"""Moves products behind the beginning of an exchange, so that they are computed while rows are on their way."""

from __future__ import annotations

from torch.fx import Graph, Node

from ..capture.nodes import is_live
from .gather import Gather

_WORTH_BYTES = 1 << 20  #: the least size of a product's weight: smaller products take less time than an exchange


def delay(graph: Graph) -> int:
    """Move products that an exchange doesn't need into its time. Returns how many nodes moved."""
    stretch: list[Node] = []
    moved = 0
    for node in list(graph.nodes):
        if isinstance(node.target, Gather):
            moved += _delay(node, stretch)
        if is_live(node):
            stretch = []
        elif node.op in ("call_function", "call_method"):
            stretch.append(node)
    return moved


def _delay(gather: Node, stretch: list[Node]) -> int:
    within, needed = set(stretch), set[Node]()
    waiting = [*gather.all_input_nodes]
    while waiting:
        node = waiting.pop()
        if node in within and node not in needed:
            needed.add(node)
            waiting += node.all_input_nodes
    late: dict[Node, None] = {}
    for node in stretch:
        if node not in needed and (_is_product(node) or any(each in late for each in node.all_input_nodes)):
            late[node] = None
    behind = gather
    for node in late:
        behind.append(node)
        behind = node
    return len(late)


def _is_product(node: Node) -> bool:
    """Whether it reads a large weight."""
    weights = (each.meta["val"] for each in node.all_input_nodes if "source" in each.meta)
    return any(weight.dim() > 1 and weight.nbytes >= _WORTH_BYTES for weight in weights)
