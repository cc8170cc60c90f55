"""What keys a captured variant: everything about a call's arguments but the values of its tensors, and autocast.

A call's arguments are walked once: tensors are collected in order, and all the rest goes into a hashable key. What can't be
compared by value (a callable, an object of an unknown class) can't be keyed and raises, so that the caller runs eager.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Mapping
from typing import Any

import torch

from .errors import CaptureError

_BY_VALUE = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.memory_format, torch.layout, enum.Enum)


def autocast_state() -> tuple[tuple[str, torch.dtype], ...]:
    """The device types that autocast is on for, each with the dtype that it computes in."""
    return tuple((kind, torch.get_autocast_dtype(kind)) for kind in ("cuda", "cpu") if torch.is_autocast_enabled(kind))


class Signature:
    """The key of a call, as it is made here and now, and its tensors in the order of the walk.

    Attributes:
        key: hashable, equal for calls that one captured variant serves.
        autocast: :func:`autocast_state` at the call.
        tensors: each distinct tensor object once.
    """

    __slots__ = ("_index", "autocast", "key", "tensors")

    def __init__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.tensors: list[torch.Tensor] = []
        self._index: dict[int, int] = {}
        self.autocast = autocast_state()
        self.key: Hashable = (self._walk(args, "args"), self._walk(kwargs, "kwargs"), self.autocast)

    @property
    def layout(self) -> Hashable:
        """What ``key`` has of tensors and autocast, and nothing of the other arguments."""
        return (*map(_layout, self.tensors), self.autocast)

    def __str__(self) -> str:
        """The first tensors, and autocast: to tell one signature from another by eye."""
        shown = [f"{str(tensor.dtype)[6:]}{list(tensor.shape)}" for tensor in self.tensors[:6]]
        more = ["..."] if len(self.tensors) > 6 else []
        return ", ".join([*shown, *more, *(f"autocast to {str(dtype)[6:]} on {kind}" for kind, dtype in self.autocast)])

    def _walk(self, value: Any, path: str) -> Hashable:
        if isinstance(value, torch.Tensor):
            return self._tensor(value, path)
        if isinstance(value, float):
            return (type(value), value.hex())  # keeps 0.0 and -0.0 apart, and finds nan again
        if isinstance(value, _BY_VALUE):
            return (type(value), value)  # the type keeps 1, 1.0 and True apart
        if isinstance(value, (tuple, list)):
            return (type(value), tuple(self._walk(item, f"{path}[{i}]") for i, item in enumerate(value)))
        if isinstance(value, dict):
            return (type(value), tuple((key, self._walk(item, f"{path}[{key!r}]")) for key, item in value.items()))
        raise CaptureError(f"{path} holds a {type(value).__name__}, which can't be part of a signature")

    def _tensor(self, tensor: torch.Tensor, path: str) -> Hashable:
        index = self._index.get(id(tensor))
        if index is not None:  # the same object twice: a variant traced so must not serve two different tensors
            return ("same tensor", index)
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
            raise CaptureError(f"{path} is a {type(tensor).__name__} of layout {tensor.layout}, needs a plain strided tensor")
        self._index[id(tensor)] = len(self.tensors)
        self.tensors.append(tensor)
        return _layout(tensor)


def _layout(tensor: torch.Tensor) -> Hashable:
    return (tensor.shape, tensor.dtype, tensor.stride(), tensor.device)


def difference(key: Any, other: Any) -> str:
    """Where the key of a signature is not that of another: ``kwargs['options']['step']``, say."""
    named = zip(key, other, ("args", "kwargs", "autocast"), strict=True)
    return next(_place(*each) for each in named if each[0] != each[1])


def _place(now: Any, then: Any, path: str) -> str:
    """Where, at ``path`` or below it, two parts of keys differ, which they do."""
    if not (now and then and now[0] is then[0] and now[0] in (tuple, list, dict) and len(now[1]) == len(then[1])):
        return path
    at = next(index for index, pair in enumerate(zip(now[1], then[1], strict=True)) if pair[0] != pair[1])
    one, other = now[1][at], then[1][at]
    if now[0] is not dict:
        return _place(one, other, f"{path}[{at}]")
    return _place(one[1], other[1], f"{path}[{one[0]!r}]") if one[0] == other[0] else path


def snapshot(value: Any) -> Any:
    """Copy the containers of an argument, not its tensors: some forwards pop their lists empty."""
    if isinstance(value, dict):
        return {key: snapshot(item) for key, item in value.items()} if type(value) is dict else value
    if type(value) in (list, tuple):
        return type(value)(snapshot(item) for item in value)
    return value
