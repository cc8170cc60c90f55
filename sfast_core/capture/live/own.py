"""The model's own functions that live code is handed, as they are: for a call of one that wasn't recorded.

A model makes such a function in its forward, around the block whose turn it is. It is made again of its code and of
what it closes over, which a template makes as it makes the live code's arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import CellType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from ..errors import AnotherStructure, CaptureError
from ..guards.notes import MISSING, content_of
from .reach import set_outside
from .template import Filling, Template

if TYPE_CHECKING:
    from .building import Building


@dataclass(frozen=True)
class Own:
    """A function of the model's own.

    Attributes:
        bare: it, without what belongs to a call.
        contents: makes what it closes over, its defaults and those of its keywords.
        keys: those of the dicts that it closes over, by their places: it gets others with the same items.
    """

    bare: FunctionType
    contents: Template
    keys: Mapping[int, tuple[Any, ...]]

    def run(self, by: Filling, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the function returns in this call.

        Raises:
            AnotherStructure: it changes a dict that it closes over.
        """
        closed, defaults, named = self.contents.fill(by)
        dicts = {place: dict(zip(keys, closed[place], strict=True)) for place, keys in self.keys.items()}
        cells = tuple(CellType(dicts.get(place, content)) for place, content in enumerate(closed))
        made = FunctionType(self.bare.__code__, self.bare.__globals__, self.bare.__name__, defaults, cells)
        made.__kwdefaults__ = dict(named)
        result = made(*args, **kwargs)
        for place, now in dicts.items():
            then = dict(zip(self.keys[place], closed[place], strict=True))
            if now.keys() != then.keys() or any(now[key] is not then[key] for key in now):
                raise AnotherStructure(f"{self.bare.__name__} changes what it closes over")
        return result


@dataclass(frozen=True)
class OwnMethod:
    """A method of a module of the model's own."""

    function: Callable[..., Any]
    module: Template

    def run(self, by: Filling, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the method returns in this call."""
        return self.function(self.module.fill(by), *args, **kwargs)


def own_of(function: Any, building: Building) -> Own | OwnMethod | None:
    """How it is made at another call; None where it can't be, or changes what it closes over."""
    try:
        if isinstance(function, MethodType):
            return OwnMethod(function.__func__, building.of(function.__self__))
        code, closed = function.__code__, tuple(map(content_of, function.__closure__ or ()))
        if any(each is MISSING for each in closed) or not set_outside(function).isdisjoint(code.co_freevars):
            return None
        rest = function.__defaults__ or (), tuple((function.__kwdefaults__ or {}).items())
        keys = {place: tuple(each) for place, each in enumerate(closed) if building.is_new(each, dict)}
        items = tuple(tuple(each.values()) if place in keys else each for place, each in enumerate(closed))
        if building.is_mutable((items, *rest)):
            return None
        contents = building.of((items, *rest))
    except CaptureError:
        return None
    bare = FunctionType(code, function.__globals__, function.__name__, None, tuple(CellType() for _ in closed))
    return Own(bare, contents, keys)
