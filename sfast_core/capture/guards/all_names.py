"""Which attributes there are of what code reads by names that it computes."""

from __future__ import annotations

from collections.abc import Iterable
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, ModuleType
from typing import Any

import torch

from .chains import ATTRIBUTE, LOADED, USED, Chain
from .given import is_given
from .kinds import Kind, carried
from .notes import Seen

#: What has attributes and is no object of a class of Python code's.
NAMED = frozenset({Kind.FILE, Kind.CLASS, Kind.FUNCTION})
_OF_MODULES = vars(torch.nn.Module()).keys() - {"training"}


def each_of(value: Any) -> Chain:
    """What is read of something of a kind of :data:`NAMED` where any attribute may be."""
    names: Iterable[str]
    if isinstance(value, ModuleType):
        if is_given(value.__name__):
            return _functions_of(value)
        names = [name for name in vars(value) if not name.startswith("__")]
    else:
        names = own_of(value) if isinstance(value, type) else vars(value)
    chain = Chain()
    chain.below = {(ATTRIBUTE, name): USED for name in names}
    return chain


def _functions_of(library: ModuleType) -> Chain:
    """Those of a file of Python's or PyTorch's, and its classes: nobody steers by anything else there, but may put
    others in their places.
    """
    chain = Chain()
    for name, value in vars(library).items():
        if callable(value) and not name.startswith("__"):
            of_c = isinstance(value, BuiltinFunctionType)
            given = of_c or is_given(getattr(value, "__module__", None))
            chain.below[ATTRIBUTE, name] = LOADED if given else USED
    return chain


def names_of(seen: Seen) -> list[str]:
    """The names of an object's attributes, without those that each module has, and of what its class has."""
    own = [name for name in seen.before if seen.kind is not Kind.MODULE or name not in _OF_MODULES]
    return [*own, *own_of(seen.cls)]


def own_of(cls: type) -> dict[str, Any]:
    """What a user's class has, itself and from its bases, besides functions: those show when they run."""
    found: dict[str, Any] = {}
    for owner in cls.__mro__[:-1]:
        if not is_given(owner.__module__):
            found |= {
                name: value
                for name, value in vars(owner).items()
                if _is_own(name) and not isinstance(carried(value), FunctionType)
            }
    return found


def slots_of(cls: type) -> list[str]:
    """The slots of a class, itself and from its bases."""
    return [
        name
        for owner in cls.__mro__
        for name, value in vars(owner).items()
        if isinstance(value, MemberDescriptorType) and not name.startswith("__")
    ]


def _is_own(name: str) -> bool:
    # what that has is asked of Python
    return name == "__dataclass_fields__" or not name.startswith("__") and name != "_abc_impl"
