"""Did what modules are change below a trace? Their classes, the methods in those, and the functions that methods call by name.

Some replace a method for all layers at once, or the function that computes attention for all models.
"""

from __future__ import annotations

import itertools
import operator
import weakref
from collections.abc import Iterable
from types import FunctionType, MappingProxyType
from typing import Any

import torch

from .called import CalledGuard
from .equality import SIMPLE, same
from .places import Places

_METHODS = (FunctionType, staticmethod, classmethod, property)
_GIVEN = (object, torch.nn.Module)  # nobody replaces what is in these


class ClassGuard:
    """The class of every module at the time of a trace, the methods and simple values in those classes, and the functions that they call.

    Asked at every call, like the structure's guard, and as that compares flat lists in C. The root is held weakly, what is below it is held.

    Args:
        root: the module.
        more: classes of other objects that take part.
        functions: functions that modules have of their own.

    Attributes:
        used: all names in the code that computes, and perhaps others.
    """

    def __init__(self, root: torch.nn.Module, more: Iterable[type] = (), functions: Iterable[Any] = ()) -> None:
        self._root, self._root_class = weakref.ref(root), type(root)
        below = {path: module for path, module in root.named_modules() if path}
        self._paths, self._modules = list(below), list(below.values())
        self._classes = list(map(type, self._modules))
        every = dict.fromkeys((self._root_class, *self._classes, *more))
        self._owners = list(dict.fromkeys(owner for cls in every for owner in cls.__mro__ if owner not in _GIVEN))
        self._spaces = list(map(vars, self._owners))
        self._called = CalledGuard(self._spaces, functions)
        self.used = self._called.used
        self._then = [_methods(space) for space in self._spaces]
        self._look()

    def changed(self) -> str | None:
        """What changed since the trace, in words, or None."""
        root = self._root()
        if root is not None and type(root) is not self._root_class:
            return "the module's class changed"
        classes = list(map(type, self._modules))
        if not all(map(operator.is_, classes, self._classes)):
            different = map(operator.is_not, classes, self._classes)
            return f"the class of {next(itertools.compress(self._paths, different))} changed"
        if change := self._called.changed():
            return change
        if list(map(len, self._spaces)) == self._sizes and self._values.same():
            return None
        now = [_methods(space) for space in self._spaces]
        for owner, after, before in zip(self._owners, now, self._then, strict=True):
            for name in {**before, **after}:
                if not same(after.get(name), before.get(name)):
                    return f"{owner.__qualname__}.{name} changed"
        self._look()  # what is different doesn't matter: take it over, so that the next call is quick again
        return None

    def _look(self) -> None:
        self._sizes = list(map(len, self._spaces))
        places = ((space, name) for space, then in zip(self._spaces, self._then, strict=True) for name in then)
        self._values = Places(places, MappingProxyType.get)


def _methods(space: MappingProxyType[str, Any]) -> dict[str, Any]:
    """What is watched of a class."""
    return {
        name: value for name, value in space.items() if isinstance(value, _METHODS) or (isinstance(value, SIMPLE) and not name.startswith("_"))
    }
