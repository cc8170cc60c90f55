"""How what live code returns, or hands to the model's own functions, is built: a key to compare, and its tensors in
order.
"""

from __future__ import annotations

import enum
import numbers
from collections.abc import Hashable, Sequence
from types import FunctionType
from typing import Any, NamedTuple

import torch

from ..values import PLAIN_CLASSES
from .looked import Looked, Looks
from .surroundings import Surroundings

PLAIN = (*PLAIN_CLASSES, bytes, type(...), torch.Size)
_DEEPEST = 20


def is_constant(value: Any) -> bool:
    """Whether a value is as good in one call as in another: numbers, classes, functions that nothing of a call is bound
    to.
    """
    if isinstance(value, (*PLAIN, type, enum.Enum, numbers.Number)):
        return True
    return (
        type(value) is FunctionType
        and value.__closure__ is None
        and not value.__defaults__
        and not value.__kwdefaults__
    )


class Structure:
    """A value taken apart.

    Args:
        value: of tuples, lists and dicts, with tensors, plain values and the call's own options in them.
        around: the call's own things.

    Attributes:
        key: equal for values that are built alike, up to what is in their tensors and in the call's options.
        tensors: each distinct one once, in order.
        unknown: in words, what can't be compared, or None.
    """

    def __init__(self, value: Any, around: Surroundings) -> None:
        self.tensors: list[torch.Tensor] = []
        self.unknown: str | None = None
        self._index: dict[int, int] = {}
        self._around = around
        self.key = self._of(value, 0)

    def _of(self, value: Any, depth: int) -> Hashable:
        kind = type(value)
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if kind in PLAIN or isinstance(value, (enum.Enum, numbers.Number)):
            return (kind, value.hex() if kind is float else value)
        if (path := self._around.path(value)) is not None:
            return ("option", path)
        if depth > _DEEPEST:
            self.unknown = "containers in one another without end"
        elif kind in (tuple, list):
            return (kind, tuple([self._of(item, depth + 1) for item in value]))
        elif kind is dict:
            for key in value:
                if isinstance(key, torch.Tensor):
                    self._tensor(key)
                    self.unknown = "a dict with a tensor as a key"
            return (
                kind,
                tuple(
                    [
                        (key, ("option", (key,)) if self._around.is_unread(key, item) else self._of(item, depth + 1))
                        for key, item in value.items()
                    ]
                ),
            )
        elif is_constant(value) or isinstance(value, torch.nn.Module):
            return ("is", id(value))
        self.unknown = self.unknown or f"a {kind.__name__}"
        return ("unknown", kind)

    def _tensor(self, tensor: torch.Tensor) -> Hashable:
        index = self._index.get(id(tensor))
        if index is not None:
            return ("same tensor", index)
        if (path := self._around.path(tensor)) is not None:
            return ("option", path)
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
            self.unknown = f"a {type(tensor).__name__} of layout {tensor.layout}"
        self._index[id(tensor)] = len(self.tensors)
        self.tensors.append(tensor)
        return ("tensor", tuple(tensor.shape), tensor.dtype, tensor.device, tensor.is_conj(), tensor.is_neg())


class Pattern(NamedTuple):
    """How a value was built that live code returned.

    Attributes:
        kind: ``tensor``, ``plain``, ``any``, ``tuple``, ``list`` or ``dict``.
        what: the tensor's number, the plain value with its type, or the items.
        form: the tensor's shape, dtype and device; of a dict what the model looked for in it.
    """

    kind: str
    what: Any = None
    form: Any = None


def looked(value: Any) -> Any:
    """``value`` with each dict in its tuples, lists and dicts as one that notes what is looked for."""
    kind = type(value)
    if kind in (tuple, list):
        return kind([looked(item) for item in value])
    return Looked({key: looked(item) for key, item in value.items()}) if kind is dict else value


def pattern_of(value: Any, around: Surroundings, tensors: Sequence[torch.Tensor], models: Any = None) -> Pattern:
    """That of ``value``, whose distinct tensors are these. ``models``: the same as the model gets it."""
    kind = type(value)
    if isinstance(value, torch.Tensor):
        number = next((number for number, tensor in enumerate(tensors) if tensor is value), None)
        return Pattern("any") if number is None else Pattern("tensor", number, (value.shape, value.dtype, value.device))
    if around.path(value) is not None:
        return Pattern("any")
    if kind in (tuple, list):
        theirs = models if type(models) is kind else [None] * len(value)
        return Pattern(
            kind.__name__, [pattern_of(item, around, tensors, its) for item, its in zip(value, theirs, strict=True)]
        )
    if kind is dict:
        found = models if isinstance(models, Looked) else None
        own = {} if found is None else dict(dict.items(found))
        return Pattern(
            "dict",
            [(key, pattern_of(item, around, tensors, own.get(key))) for key, item in value.items()],
            None if found is None else found.looks,
        )
    return Pattern("plain", (kind, value)) if kind in PLAIN else Pattern("any")


def match(pattern: Pattern, value: Any, used: frozenset[int], found: list[Any]) -> bool:
    """Whether ``value`` can stand where one with this pattern was: of a dict it may have more, and less that nobody
    uses.

    Args:
        pattern: how the other one was built.
        value: it.
        used: the numbers of tensors that are used.
        found: gets these tensors, by number.
    """
    kind = pattern.kind
    if kind == "tensor":
        if pattern.what not in used:
            return True
        if (
            not (type(value) is torch.Tensor or isinstance(value, torch.Tensor))
            or (value.shape, value.dtype, value.device) != pattern.form
            or value.layout is not torch.strided
            or (found[pattern.what] is not None and found[pattern.what] is not value)  # it was one, and is two now
        ):
            return False
        found[pattern.what] = value
        return True
    if kind == "any":
        return True
    if kind == "plain":
        return (type(value), value) == pattern.what
    if kind == "dict":
        return isinstance(value, dict) and _match_dict(pattern, value, used, found)
    return (
        type(value).__name__ == kind
        and len(value) == len(pattern.what)
        and all(match(*both, used, found) for both in zip(pattern.what, value, strict=True))
    )


def _match_dict(pattern: Pattern, value: dict[Any, Any], used: frozenset[int], found: list[Any]) -> bool:
    looks: Looks | None = pattern.form
    items = dict(pattern.what)
    if looks is not None:
        wanted = items.keys() | value.keys() if looks.everything else looks.keys
        if any((key in value) != (key in items) for key in wanted):
            return False
        items = {key: item for key, item in items.items() if key in wanted or _is_used(item, used)}
    return all(
        match(item, value[key], used, found) if key in value else not _is_used(item, used)
        for key, item in items.items()
    )


def _is_used(pattern: Pattern, used: frozenset[int]) -> bool:
    """Whether anything of it matters."""
    if pattern.kind == "tensor":
        return pattern.what in used
    if pattern.kind in ("tuple", "list"):
        return any(_is_used(item, used) for item in pattern.what)
    if pattern.kind == "dict":
        return any(_is_used(item, used) for _, item in pattern.what)
    return pattern.kind == "plain"
