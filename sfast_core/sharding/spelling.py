"""A recorded graph as the rules know it, and what its nodes are called."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator

import torch
from torch.fx import Graph, Node

from ..capture.calls import function_name
from ..rewrite.graph import drop_unused, insert, replace, results_of, shape, value
from ..rewrite.patterns import sdpa
from ..rewrite.pipeline import passes

_LAST_PASS = "recover_linear"
_SPLITS = ("chunk", "split", "split_with_sizes", "tensor_split")


def prepared(graph: Graph) -> None:
    """Spell a recorded graph by the first passes, and with slices where streams of tokens are split."""
    with torch.inference_mode(False), torch.no_grad():
        for name, run in passes(None).items():
            run(graph)
            if name == _LAST_PASS:
                break
        for node, name in list(named_nodes(graph)):
            if name in _SPLITS:
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


def _as_slices(split: Node) -> None:
    """Parts along another dimension than the last: a rule is asked of each by itself."""
    x, taken = split.args[0], results_of(split)
    if not isinstance(x, Node) or set(taken.values()) != set(split.users) or not taken:
        return
    rank = value(x).dim()
    dims = {dim for dim in range(rank) for each in taken.values() if shape(each)[dim] != shape(x)[dim]}
    if len(dims) != 1 or (dim := dims.pop()) == rank - 1:
        return
    sizes = _sizes(split, shape(x)[dim])
    if sizes is None or any(shape(each)[dim] != sizes[index] for index, each in taken.items()):
        return
    for index, each in taken.items():
        begin = sum(sizes[:index])
        where = (*[slice(None)] * dim, slice(begin, begin + sizes[index]))
        replace(each, insert(each, operator.getitem, x, where))


def _sizes(split: Node, whole: int) -> list[int] | None:
    """How long the parts are, of something so long."""
    given = split.args[1] if len(split.args) > 1 else next(iter(split.kwargs.values()), None)
    if isinstance(given, (tuple, list)) and all(isinstance(size, int) for size in given) and sum(given) == whole:
        return list(given)
    if not isinstance(given, int):
        return None
    size = -(-whole // given) if name_of(split) == "chunk" else given
    return [min(size, whole - begin) for begin in range(0, whole, size)]
