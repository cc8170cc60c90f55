"""An RMSNorm with what is done to tokens around it in one pass: the gated sum in front, which stays for the residual
stream, the modulation behind.

Runs behind :mod:`.fuse_norm_quantise`, which takes those that are quantised.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch.nn.functional as F
from torch.fx import Graph

from ...ops.ada_rms_norm import ada_rms_norm
from ...weights.kitchen import operators
from ..graph import alike, calls_of, insert_as, insert_item, metas, replace, value
from ..patterns import HasImpl
from ..repeats import by_part
from ..rms_norms import Modulation, Norm, modulation_of, norm_of, sum_of


class _Found(NamedTuple):
    norm: Norm
    modulation: Modulation
    is_kernel: bool  #: it is one pass already


def fuse_ada_rms_norm(graph: Graph, has_impl: HasImpl) -> int:
    """Each RMSNorm of tokens that has something around it.

    One that is a kernel of PyTorch's or of comfy-kitchen's with all that it has stays, unless its modulation is
    repeated for that.
    """
    return sum([_fuse(found, has_impl) for found in [*_norms(graph), *_by_operator(graph)]])


def _norms(graph: Graph) -> Iterator[_Found]:
    for node in calls_of(graph, F.rms_norm):
        if (norm := norm_of(node)) is not None:
            modulation = modulation_of(norm.node)
            yield _Found(norm, modulation, modulation.last is node and not norm.offset)


def _by_operator(graph: Graph) -> Iterator[_Found]:
    """comfy-kitchen's operator of a norm and its modulation."""
    for node in calls_of(graph, *operators("rms_adaln")):
        if len(node.args) == 4 and alike(node.args[0], node):
            x, scale, shift, eps = node.args
            yield _Found(Norm(node, node, x, eps, None), Modulation(node, scale, shift), True)


def _fuse(found: _Found, has_impl: HasImpl) -> bool:
    """Put the op in the place of all that belongs to a norm."""
    norm, (last, scale, shift) = found.norm, found.modulation
    total = norm.x
    is_read_before = any(user < last for user in total.users if user is not norm.first)
    summed = None if is_read_before else sum_of(total, norm.eps)
    x, residual, gate, x_weight = summed or (total, None, None, None)
    (scale, shift, gate), part = by_part(scale, shift, gate)
    if summed is None and found.is_kernel and part == 1:
        return False
    arguments = (x, norm.eps, norm.weight, scale, shift, residual, gate, x_weight, norm.offset, part)
    if not has_impl(ada_rms_norm, *metas(arguments)):
        return False
    both = insert_as(
        last,
        (value(total).contiguous() if summed else value(total), value(last).contiguous()),
        ada_rms_norm,
        *arguments,
    )
    if summed:
        total.replace_all_uses_with(insert_item(last, both, 0), delete_user_cb=lambda user: user is not norm.first)
    replace(last, insert_item(last, both, 1))
    return True
