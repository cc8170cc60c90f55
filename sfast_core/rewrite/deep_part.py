"""The deep part of a UNet: all that is computed below its outermost pictures, and comes back to them as one tensor.

From step to step that changes slowly (DeepCache, arXiv 2312.00858). So a call's graph is made into two: one that gives that tensor, too, and one that is
given it and leaves all out that is computed for it alone.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch.fx import Graph, Node

from ..capture.calls import function_name
from ..capture.nodes import new_graph
from .graph import drop_unused, drop_unused_weights, is_input, value

_LEAST = 0.3  #: of the work, the deep part is to have
_WORK = ("linear", "conv2d", "matmul", "bmm", "baddbmm", "addmm", "scaled_dot_product_attention")


class Cut(NamedTuple):
    """``whole`` gives the deep part's tensor behind its results; ``shallow`` is given it behind its inputs. ``share``: of the work, the deep part's."""

    whole: Graph
    shallow: Graph
    share: float


def cut_deep(graph: Graph) -> Cut | str:
    """The graph of a call cut in two, or why it isn't. The graph itself becomes the whole."""
    work = {node: _work(node) for node in graph.nodes}
    total = sum(work.values())
    best: tuple[float, Node] | None = None
    for node in graph.nodes:
        inner = _from_below(node)
        if inner is not None and total:
            share = sum(work[each] for each in _only_for(graph, inner)) / total
            if share >= _LEAST and (best is None or share > best[0]):
                best = share, inner
    if best is None:
        return "there is no deep part that could be used again"
    share, deep = best
    if any(_is_picture(node) and node.users and _only_for(graph, deep).issuperset(node.users) for node in graph.nodes):
        return "something is added deep inside at each call, as a ControlNet does"
    shallow = _without(graph, deep)
    (output,) = [node for node in graph.nodes if node.op == "output"]
    output.args = ((*output.args[0], deep),)  # type: ignore[misc]
    return Cut(graph, shallow, share)


def _from_below(node: Node) -> Node | None:
    """The picture that comes from below, where ``node`` joins it with one that has been kept, along channels."""
    if node.op != "call_function" or function_name(node.target) not in ("cat", "concat", "concatenate") or not node.args:
        return None
    parts, dim = node.args[0], node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else 0)
    if not isinstance(parts, (tuple, list)) or len(parts) != 2 or dim not in (1, -3):
        return None
    first = parts[0]
    return first if isinstance(first, Node) and first.op != "placeholder" and isinstance(first.meta.get("val"), torch.Tensor) and value(first).dim() == 4 else None


def _is_picture(node: Node) -> bool:
    return is_input(node) and value(node).dim() == 4


def _only_for(graph: Graph, deep: Node) -> set[Node]:
    """What is computed for this node alone, with itself."""
    found = {deep}
    seen = False
    for node in reversed(graph.nodes):
        seen = seen or node is deep
        if seen and node.op not in ("placeholder", "output") and node.users and all(user in found for user in node.users):
            found.add(node)
    return found


def _work(node: Node) -> float:
    """About the multiplications of a call."""
    if node.op not in ("call_function", "call_method") or function_name(node.target) not in _WORK or not isinstance(node.meta.get("val"), torch.Tensor):
        return 0.0
    tensors = [value(arg) for arg in node.args if isinstance(arg, Node) and isinstance(arg.meta.get("val"), torch.Tensor)]
    if len(tensors) < 2:
        return 0.0
    x, other = tensors[:2]
    if function_name(node.target) == "scaled_dot_product_attention":
        return 2.0 * x.numel() * other.shape[-2]
    if function_name(node.target) == "conv2d":
        return float(value(node).numel() * math.prod(other.shape[1:]))
    return float(value(node).numel() * x.shape[-1])


def _without(graph: Graph, deep: Node) -> Graph:
    """A copy that is given what ``deep`` computes."""
    copy, made = new_graph(), dict[Node, Node]()
    last = [node for node in graph.nodes if node.op == "placeholder" and is_input(node)][-1]
    given: Node | None = None
    for node in graph.nodes:
        made[node] = copy.node_copy(node, made.__getitem__)
        if node is last:
            given = copy.placeholder("deep")
            given.target = given.name
            given.meta.update(val=value(deep), device=deep.meta.get("device"))
    assert given is not None
    made[deep].replace_all_uses_with(given)
    drop_unused(copy)
    drop_unused_weights(copy)
    return copy
