"""A recorded graph as the rules know it, and what its nodes are called."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator

import torch
from torch.fx import Graph, Node

from ..capture.calls import function_name
from ..rewrite.graph import drop_unused, insert, replace, results_of, value
from ..rewrite.parts import split_of
from ..rewrite.patterns import sdpa
from ..rewrite.pipeline import passes

_LAST_PASS = "recover_linear"


def prepared(graph: Graph) -> None:
    """Spell a recorded graph by the first passes, and with slices where streams of tokens are split."""
    with torch.inference_mode(False), torch.no_grad():
        for name, run in passes(None).items():
            run(graph)
            if name == _LAST_PASS:
                break
        for node, _ in list(named_nodes(graph)):
            _as_slices(node)
    drop_unused(graph)


def name_of(node: Node) -> str:
    """What a node calls, by the name that rules know it by: ``__add__`` is ``add``."""
    if node.target is sdpa:
        return "sdpa"
    return function_name(node.target).strip("_") if node.op in ("call_function", "call_method") else ""


def named_nodes(graph: Graph) -> Iterator[tuple[Node, str]]:
    """What calls something, with the name of that."""
    return ((node, name) for node in graph.nodes if (name := name_of(node)))


def computes_in(graph: Graph) -> torch.dtype | None:
    """The dtype that most linear layers and convolutions compute in; None where there are none."""
    dtypes = Counter(value(node).dtype for node, name in named_nodes(graph) if name in ("linear", "conv2d"))
    return max(dtypes, key=dtypes.__getitem__) if dtypes else None


def has_images(graph: Graph) -> bool:
    """Whether there are convolutions."""
    return any(name == "conv2d" for _, name in named_nodes(graph))


def _as_slices(node: Node) -> None:
    """Parts along another dimension than the last: a rule is asked of each by itself."""
    split, taken = split_of(node), results_of(node)
    if split is None or split.dim == value(split.x).dim() - 1 or set(taken.values()) != set(node.users):
        return
    for index, each in taken.items():
        begin = sum(split.sizes[:index])
        where = (*[slice(None)] * split.dim, slice(begin, begin + split.sizes[index]))
        replace(each, insert(each, operator.getitem, split.x, where))
