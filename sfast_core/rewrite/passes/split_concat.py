"""Two images joined that nobody needs as one: a norm reads both parts, and a product is the sum of two.

A U-Net's decoder joins what it has with what the encoder kept, 9 times in SDXL: 0.3 of its 27 ms of kernels, and a copy
of both in memory.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.fx import Graph, Node

from ...ops.group_norm_act import group_norm_act
from ...ops.linear import linear
from ..graph import calls, calls_of, given, insert, insert_as, metas, named, replace, shape, value
from ..patterns import HasImpl, joined_images
from ..views import as_tokens

TOKENS = (0, 2, 3, 1)  #: the permutation from an image to its pixels


def split_concat(graph: Graph, has_impl: HasImpl) -> int:
    """``cat([x, tail], dim=1)`` of images that only norms and 1x1 convolutions read, which are matrix products by then.

    (Where :mod:`.fuse_conv_shortcut` has been at work a shortcut reads the parts already.)

    Runs behind the passes that make both. Where a kernel is missing for one of the readers all stays as it is: its
    reference would join the parts again.
    """
    split = 0
    for node in calls_of(graph, torch.cat):
        if (parts := joined_images(node)) is None:
            continue
        readers = [_reader(user, *parts, has_impl) for user in node.users]
        if not all(readers):
            continue
        for reader in readers:
            for call in reader:
                _split(call, *parts)
        split += 1
    return split


def _reader(user: Node, x: Node, tail: Node, has_impl: HasImpl) -> list[Node]:
    """The calls by which ``user`` reads the joined image, none where one of them can't take it in two parts."""
    if calls(user, group_norm_act):
        taken = named(user).tail is None and has_impl(group_norm_act, *metas(given(user, x=x, tail=tail)))
        return [user] if taken else []
    if not calls(user, torch.permute) or named(user).dims != TOKENS:
        return []
    products = list(user.users)
    return products if all(_is_product(node, user) and _has_sum(node, x, tail, has_impl) for node in products) else []


def _is_product(node: Node, tokens: Node) -> bool:
    """Whether ``node`` is a matrix product of ``tokens`` and doesn't read them otherwise too."""
    plain = calls(node, F.linear) or (calls(node, linear) and named(node).act == "none" and not named(node).gated)
    return plain and node.args[0] is tokens and tokens not in node.args[1:]


def _has_sum(product: Node, x: Node, tail: Node, has_impl: HasImpl) -> bool:
    """Whether a kernel adds x's share of ``product`` to the tail's."""
    weight, out = value(named(product).weight), value(product)
    shares = weight.split([shape(x)[1], shape(tail)[1]], dim=1)
    tokens = [out.new_empty((*shape(product)[:-1], share.shape[1])) for share in shares]
    return has_impl(linear, tokens[0], shares[0], None, "none", False, out.new_empty(out.shape))


def _split(call: Node, x: Node, tail: Node) -> None:
    if calls(call, group_norm_act):
        replace(call, insert_as(call, value(call), group_norm_act, *given(call, x=x, tail=tail)))
        return
    weight = named(call).weight
    channels = shape(x)[1]
    of_x = insert(call, torch.narrow, weight, 1, 0, channels)
    of_tail = insert(call, torch.narrow, weight, 1, channels, shape(tail)[1])
    tail_share = insert_as(
        call, value(call), call.target, as_tokens(tail).insert(call), *given(call, weight=of_tail)[1:]
    )
    replace(
        call, insert_as(call, value(call), linear, as_tokens(x).insert(call), of_x, None, "none", False, tail_share)
    )
