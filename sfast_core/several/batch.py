"""A call's arguments and results along the batch: cut into spans, put together again, and made unusable where another
span lies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch

Span = tuple[int, int]  #: from one image of the batch to another, which isn't in it


def batch_of(tensors: Sequence[torch.Tensor]) -> int:
    """How many a call with these tensors is of: the first dimension of the first tensor that has two or more. 0 where
    there is none.
    """
    return next((tensor.shape[0] for tensor in tensors if tensor.dim() > 1), 0)


def spans(batch: int, places: int) -> list[Span]:
    """The batch in as many spans as there are places, or images; the larger ones first, none longer than another by
    more than one.
    """
    count = min(batch, places)
    ends = list(accumulate(batch // count + (index < batch % count) for index in range(count)))
    return list(zip([0, *ends[:-1]], ends, strict=True))


def each_of(value: Any, batch: int, make: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """``value`` with ``make(tensor)`` for each tensor that has a batch; containers are made anew,
    one tensor stays one.
    """
    made: dict[int, torch.Tensor] = {}

    def walk(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if not value.dim() or value.shape[0] != batch:
                return value
            if id(value) not in made:
                made[id(value)] = make(value)
            return made[id(value)]
        if type(value) is dict:
            return {key: walk(item) for key, item in value.items()}
        if type(value) in (list, tuple):
            return type(value)([walk(item) for item in value])
        if isinstance(value, tuple) and hasattr(value, "_fields"):  # a named one: what an object of a host's holds
            return type(value)(*map(walk, value))
        return value

    return walk(value)


def cut(value: Any, batch: int, span: Span) -> Any:
    """The span's part of arguments: of each tensor as long as the batch that part, everything else as it is."""
    begin, end = span
    return each_of(value, batch, lambda tensor: tensor[begin:end])


def spoilt(value: Any, batch: int, others: Sequence[Span]) -> Any:
    """Arguments in which these spans are infinite, one way and the other: that shows in whatever it gets into, be it a
    sum, the largest or the smallest.

    Integers and truths, which have no such value, become others.
    """

    def make(tensor: torch.Tensor) -> torch.Tensor:
        spoilt = tensor.clone()
        for begin, end in others:
            part = spoilt[begin:end]
            if part.is_floating_point() or part.is_complex():
                part.fill_(math.inf)
                if part.dim() > 1:
                    part[..., 1::2].fill_(-math.inf)
            else:
                part.copy_(~part if part.dtype is torch.bool else part // 2)
        return spoilt

    return each_of(value, batch, make)


def patterns(count: int) -> list[list[int]]:
    """Which of ``count`` spans to spoil, run by run, so that each is left whole in a run in which any other one is
    spoilt.
    """
    bits = range((count - 1).bit_length())
    return [[index for index in range(count) if (index >> bit & 1) == value] for bit in bits for value in (1, 0)]


def joined(parts: Sequence[torch.Tensor], batch_spans: Sequence[Span], like: torch.Tensor) -> torch.Tensor:
    """One tensor of the parts, wherever these are.

    ``like``: of its shape, strides and dtype; it may be on the meta device.

    It is made on the first part's device.
    """
    whole = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=parts[0].device)
    for part, (begin, end) in zip(parts, batch_spans, strict=True):
        whole[begin:end].copy_(part, non_blocking=True)
    return whole


def sent(tensor: torch.Tensor, home: torch.device, there: torch.device) -> torch.Tensor:
    """A copy of what is at ``home``, with the strides that it has, also where elements lie over one another; itself
    where it is anywhere else.
    """
    if tensor.device != home or home == there:
        return tensor
    once = tensor
    for dim, step in enumerate(tensor.stride()):
        if not step and tensor.shape[dim] > 1:
            once = once.narrow(dim, 0, 1)
    if once.is_conj() or once.is_neg():
        return tensor.to(there)
    copy = torch.empty_strided(once.shape, once.stride(), dtype=once.dtype, device=there)
    return copy.copy_(once, non_blocking=True).expand(tensor.shape)
