"""A rotary position embedding in a graph, however it is spelled, and what its spellings have in common."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.fx import Node

from ...capture.functional import cast_like
from ..graph import alike, calls, insert, shape, sole_user, value

_HEADS_FIRST, _TOKENS_FIRST = 1, 2


class Rotation(NamedTuple):
    """One tensor of queries or keys that is rotated."""

    last: Node  #: whose result it is, as it is or seen in another shape
    x: Node  #: [B, H, L, D] or [B, L, H, D]
    heads: int  #: which dimension H is
    factors: tuple[Node, ...]  #: what makes the matrices, each with a dimension of size 1 for H
    readers: int = 1  #: how many of its nodes read x
    is_kernel: bool = False  #: it is one pass already
    halves: bool = False  #: pairs are of an element of the first half and one of the second
    norm: tuple[Node, float] | None = None  #: weight and eps of the RMSNorm that its operator begins with
    #: what the factors are: "matrices", "columns" of them, "cosines" and sines of each element or of each "pair",
    #: "complex", "assigned": cosines, and sines of the first and of the second half
    form: str = "matrices"

    @property
    def tokens(self) -> int:
        """Which dimension L is."""
        return _HEADS_FIRST + _TOKENS_FIRST - self.heads

    def matrices(self) -> Node:
        """The matrices in front: [B or 1, L, D / 2, 2, 2], with an H behind L where each head has its own."""
        before, factors = self.last, [self._whole(factor) for factor in self.factors]
        if self.form == "complex":
            joined = _stacked(
                before, *(insert(before, part, factors[0]) for part in (torch.real, torch.imag)), twice=True
            )
        elif self.form == "pair":
            joined = _stacked(before, *factors, twice=True)
        elif self.form == "assigned":
            cosines, first, second = factors
            parts = (insert(before, _half, cosines, 0), first, second, insert(before, _half, cosines, 1))
            joined = insert(before, torch.stack, parts, -1)
        elif self.form == "matrices":
            (joined,) = factors
        elif self.form == "columns":
            joined = insert(before, torch.stack, factors, -1)
        else:
            part = _half if self.halves else _every_other
            joined = _stacked(before, *(insert(before, part, factor, first) for factor in factors for first in (0, 1)))
        length, size, heads = (shape(self.x)[dim] for dim in (self.tokens, -1, self.heads))
        by_head = (heads,) if heads != 1 and shape(joined)[self.heads] == heads else ()
        return insert(before, torch.reshape, joined, (shape(joined)[0], length, *by_head, size // 2, 2, 2))

    def _whole(self, factor: Node) -> Node:
        """``factor`` with all four dimensions: some leave the first away, which has one element."""
        inner = {"matrices": 2, "columns": 1}.get(self.form, 0)
        if value(factor).dim() == 4 + inner:
            return factor
        return insert(self.last, torch.reshape, factor, (1, *shape(factor)))


def _stacked(before: Node, *parts: Node, twice: bool = False) -> Node:
    """Matrices of cosines and sines, of each pair's first element and second; ``twice``: both have the same."""
    cosine, sine = parts[0], parts[1 if twice else 2]
    next_cosine, next_sine = (cosine, sine) if twice else (parts[1], parts[3])
    return insert(before, torch.stack, [cosine, insert(before, torch.neg, sine), next_sine, next_cosine], -1)


def _every_other(x: torch.Tensor, first: int) -> torch.Tensor:
    """Elements ``first``, ``first + 2``, ... of the last dimension."""
    return x[..., first::2]


def _half(x: torch.Tensor, first: int) -> torch.Tensor:
    """The first or the second half of the last dimension."""
    return x.chunk(2, -1)[first]


def heads_of(x: Any, factor: Any, inner: int, of_pairs: int = 0) -> int | None:
    """Which dimension of ``x`` has its heads: the one that ``factor``, with ``inner`` dimensions behind its pairs, is
    broadcast along; or, where it has a factor for each head, too, the inner one.
    """
    if (
        not (isinstance(x, Node) and isinstance(factor, Node))
        or value(x).dim() != 4
        or value(factor).dim() not in (3 + inner, 4 + inner)
    ):
        return None
    _, first, second, size = (1, *shape(factor))[-4 - inner :][:4]
    if size != shape(x)[-1] // (of_pairs or (2 if inner else 1)) or any(
        item != 2 for item in shape(factor)[value(factor).dim() - inner :]
    ):
        return None
    if (first, second) == (1, shape(x)[2]):
        return _HEADS_FIRST
    if (first, second) == (shape(x)[1], 1):
        return _TOKENS_FIRST
    return _TOKENS_FIRST if (first, second) == shape(x)[1:3] and value(x).stride(1) >= value(x).stride(2) else None


def two_terms(node: Node) -> list[tuple[Any, Any]]:
    """The factors of both products where ``node`` is a sum of two."""
    first, *second = node.args
    products = [
        arg.args
        for arg in (node.args if calls(node, torch.add) else [first])
        if calls(arg, torch.mul) and sole_user(arg) is node
    ]
    return [*products, tuple(second)] if calls(node, torch.addcmul) else products


def back_to(node: Node, x: Any) -> Node | None:
    """``node``, or a cast of it to ``x``'s dtype behind a reshape to its shape; None where there is neither."""
    if not isinstance(x, Node) or value(node).dtype == value(x).dtype:
        return node if isinstance(x, Node) else None
    reshaped = sole_user(node)
    cast = sole_user(reshaped) if calls(reshaped, torch.reshape) else reshaped
    return cast if calls(cast, cast_like) and alike(cast, x) else None
