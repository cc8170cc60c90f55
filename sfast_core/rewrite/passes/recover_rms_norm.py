"""RMSNorm written out, as diffusers' and transformers' models do: squares, their mean, its root, and products."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.fx import Graph, Node

from ...capture.functional import cast_like
from ..graph import FLOATS, alike, called, calls, insert_as, other_of, replace, shape, sole_user, value
from ..patterns import uncast
from ..rms_norms import mean_square_of


class _Normed(NamedTuple):
    node: Node  #: ``x * rsqrt(mean(x ** 2) + eps)``, in float32, or in x's dtype where that is done so
    x: Node  #: as it came
    wide: Node  #: in float32
    eps: float


def recover_rms_norm(graph: Graph) -> int:
    """``weight * (x.float() * rsqrt(mean(x.float() ** 2, -1) + eps)).to(x)``, with the weight outside or inside of the
    cast, or without.

    The norm's result is rounded once then, behind the weight.
    """
    found = 0
    for node in [node for node in graph.nodes if called(node, "rsqrt")]:
        normed = _normed(node)
        if normed is None:
            continue
        last, x, weight = _whole(normed)
        replace(last, insert_as(last, value(last), F.rms_norm, x, shape(x)[-1:], weight, normed.eps))
        found += 1
    return found


def _normed(root: Node) -> _Normed | None:
    """The product with a reciprocal root, where that is of the mean square of what it is multiplied with."""
    total: Any = root.args[0] if len(root.args) == 1 and not root.kwargs else None
    if not calls(total, torch.add) or sole_user(total) is not root:
        return None
    mean, eps = total.args
    wide = mean_square_of(mean, total, -1) if type(eps) is float else None
    node = sole_user(root)
    if wide is None or not calls(node, torch.mul) or value(wide).dtype not in FLOATS or shape(node) != shape(wide):
        return None
    given = other_of(node, root)
    x = uncast(wide)
    return _Normed(node, x, wide, eps) if given is x or given is wide else None


def _whole(normed: _Normed) -> tuple[Node, Node, Node | None]:
    """The node whose result the norm is, what it is to read, and its weight."""
    node, x, wide, _ = normed
    back = sole_user(node)
    if calls(back, cast_like) and value(back).dtype == value(x).dtype:
        product = sole_user(back)
        weight = _weight(product, back)
        return (product, x, weight) if weight is not None else (back, x, None)
    weight = _weight(back, node)
    return (back, wide, weight) if weight is not None else (node, wide, None)


def _weight(product: Any, normed: Node) -> Node | None:
    """The vector that ``product`` multiplies ``normed`` with."""
    if not calls(product, torch.mul) or not alike(product, normed):
        return None
    weight = other_of(product, normed)
    if (
        not isinstance(weight, Node)
        or shape(weight) != shape(normed)[-1:]
        or value(weight).dtype != value(normed).dtype
    ):
        return None
    return weight
