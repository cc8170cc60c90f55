"""Puts a method of our own on one module's instance, and takes it off again as if it had never been there."""

from __future__ import annotations

import copy
import operator
import re
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..capture import function_in
from ..reporting.reason import Kind
from ..reporting.reasons.hosts import EXTENSION_REPLACES


@dataclass(frozen=True)
class HookedCall:
    """One call of a hooked method.

    Attributes:
        module: the module.
        original: the method that the hook replaced.
        foreign: why that method must not be traced (it is somebody else's), or None.
        args: the call's arguments.
        kwargs: its keyword arguments.
    """

    module: torch.nn.Module
    original: Callable[..., Any]
    foreign: str | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def eager(self) -> Any:
        """What the original method returns."""
        return self.original(*self.args, **self.kwargs)


Call = Callable[[HookedCall], Any]


class Hook:
    """An instance-level method for a module, usually ``forward``. A hook is put on and taken off once.

    Args:
        module: the module. Held weakly.
        call: is called in the place of the method.
        attribute: the method's name.
        others: the kind of reason to give where the method is somebody else's; it has the fields ``attribute`` and
            ``by``.
    """

    def __init__(
        self, module: torch.nn.Module, call: Call, attribute: str = "forward", others: Kind = EXTENSION_REPLACES
    ) -> None:
        self._module = weakref.ref(module)
        self._attribute = attribute
        self._before = module.__dict__.get(attribute)
        self._new: _Method | None = _Method(module, attribute, call, others)
        self._method = weakref.ref(self._new)  # weakly, since it holds the module

    def put(self) -> Hook:
        """Put the method on the module. Returns the hook."""
        module = self._module()
        if module is not None and self._new is not None:
            module.__dict__[self._attribute] = self._new
        self._new = None
        return self

    @property
    def module(self) -> torch.nn.Module | None:
        """The module, or None where it is gone."""
        return self._module()

    def remove(self) -> None:
        """Put back the very method that was there. A second time it does nothing.

        Where somebody has replaced ours meanwhile, theirs stays; if it calls ours, that calls the original method.
        """
        module, method, before = self._module(), self._method(), _alive(self._before)
        self._before = self._new = None
        if module is None or method is None:
            return
        method.call = None
        if module.__dict__.get(self._attribute) is not method:
            return
        if before is None:
            del module.__dict__[self._attribute]
        else:
            module.__dict__[self._attribute] = before


class _Method:
    """Our method in a module's dict. Others may keep it, and put it back when the hook is gone: then it does what the
    method does that it replaced.
    """

    def __init__(self, module: torch.nn.Module, attribute: str, call: Call, others: Kind) -> None:
        self._module = module
        self.replaced = _alive(module.__dict__.get(attribute))
        self._original = (
            getattr(module, attribute)
            if self.replaced is module.__dict__.get(attribute)
            else self.replaced or _of_class(module, attribute)
        )
        self.call: Call | None = call
        self.foreign = foreign_method(module, attribute, others)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.call is None:
            return self._original(*args, **kwargs)
        return self.call(HookedCall(self._module, self._original, self.foreign, args, kwargs))

    def __deepcopy__(self, memo: Any) -> Any:
        """A copied module has the original method."""
        return copy.deepcopy(self._original, memo)

    def __reduce__(self) -> Any:
        """A pickled module has the original method, and can be read without this package."""
        return operator.getitem, ([self._original], 0)


def _alive(there: Any) -> Any:
    """A method found in a module's dict. If it is one of ours whose hook is gone, put back by somebody else, then the
    method that it replaced.
    """
    while isinstance(there, _Method) and there.call is None:
        there = there.replaced
    return there


def _of_class(module: torch.nn.Module, attribute: str) -> Any:
    return getattr(type(module), attribute).__get__(module, type(module))


def foreign_method(module: torch.nn.Module, attribute: str, others: Kind) -> str | None:
    """The reason that a module's method isn't that of its class, or None where it is. Some extensions leave the class's
    own method on the instance.
    """
    there = module.__dict__.get(attribute)
    if isinstance(there, _Method) and there.call is None:
        return there.foreign
    own = getattr(type(module), attribute)
    if there is None or (getattr(there, "__self__", None) is module and getattr(there, "__func__", None) is own):
        return None
    return others(attribute=attribute, by=maker_of(there))


def maker_of(function: Any) -> str:
    """The package that a function comes from, as hosts name it, without the folder that a host puts in front."""
    function = function_in(function)
    package = str(getattr(function, "__module__", "") or type(function).__module__).partition(".")[0]
    return re.split(r"[/\\]", package)[-1].replace("_x_", ".")
