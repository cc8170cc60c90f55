"""Weights of several layers as one, and layers that read one input as one product."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node

from ..weights import PACKED, Packed, Weight
from .graph import insert, insert_as, is_free_weight, lay_views_like, new_weight, replace, shape, value


def is_free_alone(weight: Any) -> bool:
    """Whether a weight may get another layout and has one reader. A bias that isn't there may."""
    return weight is None or (is_free_weight(weight) and len(weight.users) == 1)


def together(weights: Sequence[Node], layout: str = PACKED) -> Weight:
    """Several weights as one."""
    return Weight(tuple(each.meta["source"].refs[0] for each in weights), layout)


def joined(name: str, weights: Sequence[Node], layout: str = PACKED) -> Node:
    """A placeholder of this name for several weights as one."""
    return new_weight(weights[0], name, together(weights, layout), Packed.meaning(*map(value, weights)))


def compute_together(layers: Sequence[Node], function: Callable[..., Any], *arguments: Any) -> None:
    """Replace layers by one call of ``function``, whose result has their features one behind the other."""
    first, widths = layers[0], [shape(node)[-1] for node in layers]
    result = value(first).new_empty((*shape(first)[:-1], sum(widths)))
    product = insert_as(first, result, function, *arguments)
    parts = [insert(first, torch.narrow, product, -1, sum(widths[:index]), width) for index, width in enumerate(widths)]
    for node, part in zip(layers, parts, strict=True):
        replace(node, part)
        lay_views_like(part)
