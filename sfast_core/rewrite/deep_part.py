"""The deep part of a model, whose result is one tensor: below a UNet's outermost pictures, behind the first block.

From step to step that tensor changes slowly (DeepCache, arXiv 2312.00858), or what all blocks but the first add to the
first one's result does (First Block Cache). So a call's graph is made into two: one that gives it, too, and one that is
given it and leaves all out that is computed for it alone.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch.fx import Graph, Node

from ..capture.nodes import new_graph
from .graph import (
    called,
    drop_unused,
    drop_unused_weights,
    insert_as,
    is_input,
    is_tensor,
    output_of,
    placeholder,
    value,
)

_LEAST = 0.3  #: of the work, the deep part is to have
_MOST_OF_ALL = 0.8  #: the tokens behind a transformer's last block
_A_BLOCK = 0.02  #: of the work, the least that is done for those behind its first: Flux has 57 blocks, SD3 24
_SUMS = ("add", "__add__", "__radd__", "__iadd__", "add_", "addcmul")
_WORK = ("linear", "conv2d", "matmul", "bmm", "baddbmm", "addmm", "scaled_dot_product_attention")


class Cut(NamedTuple):
    """``whole`` gives the deep part's tensor behind its results; ``shallow`` is given it behind its inputs.

    ``share``: of the work, the deep part's.
    """

    whole: Graph
    shallow: Graph
    share: float


def cut_deep(graph: Graph) -> Cut | str:
    """The graph of a call cut in two, or why it isn't. The graph itself becomes the whole."""
    work = {node: _work(node) for node in graph.nodes}
    total = sum(work.values())
    found = (_pictures(graph, work, total) or _tokens(graph, work, total)) if total else None
    if found is None:
        return "there is no deep part that could be used again"
    share, deep, base = found
    dropped = _only_for(graph, deep) - (_ancestors(base) if base is not None else set())
    if any(_is_picture(node) and node.users and dropped.issuperset(node.users) for node in graph.nodes):
        return "something is added deep inside at each call, as a ControlNet does"
    shallow = _without(graph, deep, base)
    output = output_of(graph)
    given = deep if base is None else insert_as(output, value(deep), torch.sub, deep, base)
    output.args = ((*output.args[0], given),)
    return Cut(graph, shallow, share)


def _pictures(graph: Graph, work: dict[Node, float], total: float) -> tuple[float, Node, None] | None:
    """Of a UNet, what comes back from below and most of the work is done for."""
    best: tuple[float, Node, None] | None = None
    for node in graph.nodes:
        if (inner := _from_below(node)) is not None:
            share = sum(work[each] for each in _only_for(graph, inner)) / total
            if share >= _LEAST and (best is None or share > best[0]):
                best = share, inner, None
    return best


def _tokens(graph: Graph, work: dict[Node, float], total: float) -> tuple[float, Node, Node] | None:
    """Of a transformer, the tokens behind its last block and those behind its first."""
    sums = [node for node in graph.nodes if _is_sum(node)]
    last = next(
        (node for node in reversed(sums) if sum(work[each] for each in _only_for(graph, node)) >= _MOST_OF_ALL * total),
        None,
    )
    if last is None:
        return None
    only = _only_for(graph, last)
    for first in sums:
        if (
            first is not last
            and first in only
            and value(first).shape == value(last).shape
            and value(first).dtype == value(last).dtype
        ):
            before = _ancestors(first)
            if sum(work[each] for each in before) >= _A_BLOCK * total:
                share = sum(work[each] for each in only - before) / total
                return (share, last, first) if share >= _LEAST else None
    return None


def _is_sum(node: Node) -> bool:
    return called(node, *_SUMS) and is_tensor(node) and value(node).dim() == 3


def _ancestors(node: Node) -> set[Node]:
    found, left = {node}, [node]
    while left:
        left += [each for each in left.pop().all_input_nodes if each not in found and not found.add(each)]  # type: ignore[func-returns-value]
    return found


def _from_below(node: Node) -> Node | None:
    """The picture that comes from below, where ``node`` joins it with one that has been kept, along channels."""
    if not called(node, "cat", "concat", "concatenate") or not node.args:
        return None
    parts, dim = node.args[0], node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else 0)
    if not isinstance(parts, (tuple, list)) or len(parts) != 2 or dim not in (1, -3):
        return None
    first = parts[0]
    return first if is_tensor(first) and first.op != "placeholder" and value(first).dim() == 4 else None


def _is_picture(node: Node) -> bool:
    return is_input(node) and value(node).dim() == 4


def _only_for(graph: Graph, deep: Node) -> set[Node]:
    """What is computed for this node alone, with itself."""
    found = {deep}
    seen = False
    for node in reversed(graph.nodes):
        seen = seen or node is deep
        if (
            seen
            and node.op not in ("placeholder", "output")
            and node.users
            and all(user in found for user in node.users)
        ):
            found.add(node)
    return found


def _work(node: Node) -> float:
    """About the multiplications of a call."""
    if not called(node, *_WORK) or not is_tensor(node):
        return 0.0
    tensors = [value(arg) for arg in node.args if is_tensor(arg)]
    if len(tensors) < 2:
        return 0.0
    x, other = tensors[:2]
    if called(node, "scaled_dot_product_attention"):
        return 2.0 * x.numel() * other.shape[-2]
    if called(node, "conv2d"):
        return float(value(node).numel() * math.prod(other.shape[1:]))
    return float(value(node).numel() * x.shape[-1])


def _without(graph: Graph, deep: Node, base: Node | None) -> Graph:
    """A copy that is given what ``deep`` computes, less ``base``."""
    copy, made = new_graph(), dict[Node, Node]()
    last = [node for node in graph.nodes if node.op == "placeholder" and is_input(node)][-1]
    given: Node | None = None
    for node in graph.nodes:
        made[node] = copy.node_copy(node, made.__getitem__)
        if node is last:
            given = placeholder(copy, "deep", val=value(deep), device=deep.meta.get("device"))
    assert given is not None
    if base is not None:
        given = insert_as(made[deep], value(deep), torch.add, made[base], given)
    made[deep].replace_all_uses_with(given)
    drop_unused(copy)
    drop_unused_weights(copy)
    return copy
