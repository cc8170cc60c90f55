"""Tokens seen as an image and images seen as tokens: chains of reshapes and permutations, forwards and back."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.fx import Node

from .graph import calls, insert_as, named, shape, value


class Step(NamedTuple):
    """One view: a permutation or a reshape, its argument, and the meta tensor that it gives."""

    function: Any
    argument: tuple[int, ...]
    val: torch.Tensor


class Seen(NamedTuple):
    """A node through views that are not in the graph yet."""

    node: Node
    steps: tuple[Step, ...] = ()

    @property
    def val(self) -> torch.Tensor:
        """The meta tensor of what is seen."""
        return self.steps[-1].val if self.steps else value(self.node)

    def through(self, function: Any, argument: tuple[int, ...]) -> Seen | None:
        """Through one more view; None where it would be a copy.

        An image seen as tokens is dense, since images have their channels innermost when the graph runs, whatever the
        recorded call had.
        """
        if function is torch.permute:
            turned = self.val.permute(argument)
            val = turned.new_empty(turned.shape) if argument == (0, 2, 3, 1) else turned
        else:
            try:
                val = self.val.view(argument)
            except RuntimeError:
                return None
        return Seen(self.node, (*self.steps, Step(function, argument, val)))

    def insert(self, before: Node) -> Node:
        """Put the views before a node. Returns the last of them."""
        node = self.node
        for step in self.steps:
            node = insert_as(before, step.val, step.function, node, step.argument)
        return node


def as_tokens(image: Node) -> Seen:
    """An image [B, C, H, W] as [B, H, W, C]."""
    seen = Seen(image).through(torch.permute, (0, 2, 3, 1))
    assert seen is not None, "a permutation takes no copy"
    return seen


def as_it_lies(node: Node) -> Seen:
    """``node`` by way of the image that it is a view of, or itself."""
    if calls(node, torch.reshape):
        image = as_it_lies(node.args[0])
        return (image.through(torch.reshape, shape(node)) if image.steps else None) or Seen(node)
    if calls(node, torch.permute) and _dims(node) == (0, 2, 3, 1):
        return as_tokens(node.args[0])
    return Seen(node)


def turned_back(seen: Seen, views: list[Node]) -> Seen | None:
    """What ``views`` would make ``seen`` of; None where that takes a copy."""
    back: Seen | None = seen
    for view in reversed(views):
        if calls(view, torch.permute):
            dims = _dims(view)
            argument = tuple(dims.index(place) for place in range(len(dims)))
        else:
            argument = shape(view.args[0])
        back = back and back.through(view.target, argument)
    return back


def _dims(permutation: Node) -> tuple[int, ...]:
    dims: tuple[int, ...] = named(permutation).dims
    return tuple(dim % len(dims) for dim in dims)
