"""Cuts arguments along the batch, joins the parts' results, and spoils parts to show that others don't need them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..sharding import Rows

Span = tuple[int, int]  #: a range of images: the first, and the one behind the last


def batch_of(tensors: Sequence[torch.Tensor]) -> int:
    """The batch size of a call: the first dimension of its first tensor that has two or more. 0: there is none."""
    return next((tensor.shape[0] for tensor in tensors if tensor.dim() > 1), 0)


def spans(batch: int, devices: int) -> list[Span]:
    """The batch in a span a device, or an image if these are fewer, as even as can be, the larger ones first."""
    return [span for ranges in Rows.even(batch, devices).ranges for span in ranges]


def each_of(value: Any, batch: int, make: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """``value`` with ``make(tensor)`` for each tensor with a batch, once for each object; containers are copied."""
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
        if isinstance(value, tuple) and hasattr(value, "_fields"):  # a named tuple, such as hosts' objects are held in
            return type(value)(*map(walk, value))
        return value

    return walk(value)


def cut(value: Any, batch: int, span: Span) -> Any:
    """The arguments of one span: its part of each tensor as long as the batch, and everything else as it is."""
    begin, end = span
    return each_of(value, batch, lambda tensor: tensor[begin:end])


def spoilt(value: Any, batch: int, others: Sequence[Span]) -> Any:
    """Arguments in which these spans are filled with both infinities, which show in whatever they get into, be it a
    sum, a maximum or a minimum. Integers and booleans are changed to other values.
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
    """Which of ``count`` spans to spoil in each run, so that of any two spans some run spoils one alone."""
    bits = range((count - 1).bit_length())
    return [[index for index in range(count) if (index >> bit & 1) == value] for bit in bits for value in (1, 0)]


def joined(parts: Sequence[torch.Tensor], batch_spans: Sequence[Span], like: torch.Tensor) -> torch.Tensor:
    """The parts as one tensor on the first's device, with shape, strides and dtype of ``like`` (meta, perhaps)."""
    whole = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=parts[0].device)
    for part, (begin, end) in zip(parts, batch_spans, strict=True):
        whole[begin:end].copy_(part, non_blocking=True)
    return whole


def sent(tensor: torch.Tensor, home: torch.device, there: torch.device) -> torch.Tensor:
    """A copy on ``there`` of a tensor on ``home``, with its strides, even overlapping. Any other stays itself."""
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
