"""Writes to a kept state (a causal model's cache) are made where that lies: a copy is most of a long cache's step."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch.fx import Graph, Node

from ..graph import alike, called, output_of


def write_in_place(graph: Graph, states: Mapping[int, int]) -> dict[int, int]:
    """Let rows be written into a call's own tensors that nothing else in the graph reads.

    To be done last: the graph is none of functions any more.

    Whoever runs it a second time on the same tensors gets the same, since what is written where doesn't depend on what
    was there.

    Args:
        graph: whose first placeholders are the call's tensors.
        states: which of the results are what the call leaves in one of its tensors, with the number of that.

    Returns:
        those of them that are that very tensor now.
    """
    given = [node for node in graph.nodes if node.op == "placeholder"]
    output = output_of(graph)
    results, found = list(output.args[0]), {}
    for index, number in states.items():
        node = results[index]
        if _writes_rows(node, given[number]) and results.count(node) == 1:
            node.op, node.target = "call_function", Tensor.index_copy_
            found[index] = number
    return found


def _writes_rows(node: Node, into: Node) -> bool:
    if not called(node, "index_copy") or node.kwargs or len(node.args) != 4:
        return False
    return node.args[0] is into and set(into.users) == {node} and alike(node, into)
