"""The end of a residual block that changes the number of channels: a convolution plus a 1x1 of the block's input."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Graph, Node

from ...ops.conv2d_shortcut import conv2d_shortcut
from ..graph import calls, calls_of, insert_as, metas, named, replace, shape, sole_user, throughout, value
from ..patterns import HasImpl, is_matrix_product, joined_images


def fuse_conv_shortcut(graph: Graph, has_impl: HasImpl) -> int:
    """Fuse each sum of a convolution and a 1x1 convolution that only it reads.

    A concatenation that the latter reads is taken in its two parts.

    Runs while 1x1 convolutions are none but that, and before other passes take the sum. Without an impl all stays: the
    1x1 convolution is a matrix product that can begin from the other's result.
    """
    fused = 0
    for total in calls_of(graph, torch.add):
        for conv, short in (total.args, reversed(total.args)):
            if not _is_block_end(conv, short, total):
                continue
            call, other = named(conv), named(short)
            begin, *tail = joined_images(other.input) or (other.input,)
            args = (call.input, call.weight, call.bias, call.padding, begin, other.weight, other.bias, *tail)
            if has_impl(conv2d_shortcut, *metas(args)):
                replace(total, insert_as(total, value(total), conv2d_shortcut, *args))
                fused += 1
                break
    return fused


def _is_block_end(conv: Any, short: Any, total: Node) -> bool:
    """Whether ``total`` adds a plain convolution of several taps and a 1x1 convolution, which nobody else reads."""
    if not all(
        calls(node, F.conv2d) and sole_user(node) is total and shape(node) == shape(total) for node in (conv, short)
    ):
        return False
    if value(conv).dtype != value(short).dtype or not is_matrix_product(short) or is_matrix_product(conv):
        return False
    call = named(conv)
    return (
        not isinstance(call.padding, str)
        and call.groups == 1
        and throughout(call.stride, 1)
        and throughout(call.dilation, 1)
    )
