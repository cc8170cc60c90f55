"""What a graph computes of neither inputs nor weights: frequency tables, position grids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

import torch
from torch.fx import Graph, Node

from ..capture.nodes import is_live


def known(graph: Graph) -> dict[Node, None]:
    """Every node whose value depends on neither inputs nor weights, in order."""
    found: dict[Node, None] = {}
    for node in graph.nodes:
        computed = node.op in ("call_function", "call_method") and not is_live(node)
        if "constant" in node.meta or (computed and all(arg in found for arg in node.all_input_nodes)):
            found[node] = None
    return found


def values(graph: Graph, nodes: Collection[Node]) -> dict[Node, Any]:
    """The values of ``nodes``, all of them :func:`known`. What these are made of is held no longer than it is read."""
    sources = _sources(nodes)
    readers = Counter(arg for node in sources for arg in node.all_input_nodes)
    there: dict[Node, Any] = {}
    with torch.inference_mode(False), torch.no_grad():
        for node in graph.nodes:
            if node not in sources:
                continue
            if "constant" in node.meta:
                there[node] = node.meta["constant"]
                continue
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), there.__getitem__)
            function = getattr(torch.Tensor, node.target) if node.op == "call_method" else node.target
            there[node] = function(*args, **kwargs)
            del args, kwargs
            for arg in node.all_input_nodes:
                readers[arg] -= 1
                if not readers[arg] and arg not in nodes:
                    del there[arg]
    return {node: there[node] for node in nodes}


def _sources(nodes: Collection[Node]) -> set[Node]:
    """``nodes`` and everything that these are made of."""
    found, left = set(nodes), list(nodes)
    while left:
        new = set(left.pop().all_input_nodes) - found
        found |= new
        left += new
    return found
