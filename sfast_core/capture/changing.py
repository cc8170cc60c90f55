"""Operators that libraries register with PyTorch and that change their arguments, as functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..weights import kitchen

#: Libraries whose operator ``name_`` leaves in its arguments what ``name`` returns.
_HAVE_SIBLINGS = (kitchen.NAMESPACE,)


class Changing:
    """What a graph calls for such an operator: the operator on copies of what it changes, which are returned.

    Args:
        operator: it returns nothing.
        changed: the places of what it changes among its arguments: numbers, and names of those that are given by name.
    """

    def __init__(self, operator: Any, changed: tuple[int | str, ...]) -> None:
        self._operator, self._changed = operator, changed
        self.__name__ = self.__qualname__ = f"left_by_{getattr(operator, '__name__', 'operator')}".replace(".", "_")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Changing) and (self._operator, self._changed) == (other._operator, other._changed)

    def __hash__(self) -> int:
        return hash((self._operator, self._changed))

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        """What the operator leaves in each of those."""
        given: dict[int | str, Any] = dict(enumerate(args))
        given.update(kwargs.items())
        for where in self._changed:
            given[where] = given[where].clone()
        self._operator(*[given[place] for place in range(len(args))], **{name: given[name] for name in kwargs})
        return tuple(given[where] for where in self._changed)


def _overload(operator: Any) -> torch._ops.OpOverload | None:
    """The one form that an operator has."""
    if isinstance(operator, torch._ops.OpOverload):
        return operator
    names = operator.overloads()
    return getattr(operator, names[0]) if len(names) == 1 else None


def changed_arguments(operator: Any, positional: int, kwargs: Mapping[str, Any]) -> tuple[int | str, ...] | None:
    """The places of what an operator changes among ``positional`` arguments and ``kwargs``; None where that depends on
    what it is given.
    """
    overload = _overload(operator)
    if overload is None:
        return None
    found: list[int | str] = []
    for place, argument in enumerate(overload._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            if place < positional:
                found.append(place)
            elif argument.name in kwargs:
                found.append(argument.name)
    return tuple(found)


def functional_sibling(operator: Any, count: int) -> Any | None:
    """The operator of the same library that returns ``count`` tensors, which ``operator`` writes to its arguments; None
    where none is known.
    """
    overload = _overload(operator)
    if overload is None:
        return None
    library, _, name = overload._schema.name.partition("::")
    if library not in _HAVE_SIBLINGS or not name.endswith("_") or not hasattr(getattr(torch.ops, library), name[:-1]):
        return None
    sibling = getattr(getattr(torch.ops, library), name[:-1])
    other = _overload(sibling)
    if other is None or len(other._schema.returns) != count:
        return None
    same = [(argument.name, str(argument.type)) for argument in overload._schema.arguments]
    return sibling if same == [(argument.name, str(argument.type)) for argument in other._schema.arguments] else None
