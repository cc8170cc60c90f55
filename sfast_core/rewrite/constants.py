"""What a graph computes of neither inputs nor weights."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch.fx import Graph, Node

from ..capture.nodes import is_live


def known(graph: Graph, nodes: Collection[Node] | None = None) -> dict[Node, Any]:
    """The value of each node that depends on neither inputs nor weights, in order: frequency tables, position grids.

    Args:
        nodes: only these, and what they are made of. None: all.
    """
    wanted = None if nodes is None else _sources(nodes)
    values: dict[Node, Any] = {}
    with torch.inference_mode(False), torch.no_grad():
        for node in graph.nodes:
            if wanted is not None and node not in wanted:
                continue
            if "constant" in node.meta:
                values[node] = node.meta["constant"]
            elif (
                node.op in ("call_function", "call_method")
                and not is_live(node)
                and all(arg in values for arg in node.all_input_nodes)
            ):
                args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
                function = getattr(torch.Tensor, node.target) if node.op == "call_method" else node.target
                values[node] = function(*args, **kwargs)
    return values


def _sources(nodes: Collection[Node]) -> set[Node]:
    """``nodes`` and everything that these are made of."""
    found, left = set(nodes), list(nodes)
    while left:
        for node in left.pop().all_input_nodes:
            if node not in found:
                found.add(node)
                left.append(node)
    return found
