"""Attributes that classes of C's compute, in no table of anybody's: a defaultdict's function, the arguments of an error."""

from __future__ import annotations

from types import BuiltinFunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import Any

import torch

from .given import is_given
from .kinds import Kind, kind_of
from .notes import COMPUTED, MISSING

_COMPARED = frozenset({Kind.VALUE, Kind.FUNCTION, Kind.CLASS})


def is_of_c(member: Any, name: str) -> bool:
    """Whether what a class has by a name is such an attribute, and none of those that Python itself keeps."""
    return isinstance(member, GetSetDescriptorType) and not name.startswith("__") and is_given(member.__objclass__.__module__)


def member_of(cls: type, name: str) -> Any:
    """What a class of Python's, PyTorch's or NumPy's has by this name, if it is such an attribute; else None.

    Not what every tensor tells of itself: the recorder hears of that, and a note of it would hold the tensor, each quantised input of a call's for one.
    """
    owner, member = next(((owner, vars(owner)[name]) for owner in cls.__mro__ if name in vars(owner)), (None, None))
    if owner is torch._C.TensorBase:
        return None
    of_c = is_of_c(member, name) or (isinstance(member, MemberDescriptorType) and is_given(member.__objclass__.__module__))
    return member if of_c and not name.startswith("__") else None


def told(member: Any, value: Any) -> Any:
    """What it says now; COMPUTED where that is another object each time, or can't be compared."""
    try:
        found = member.__get__(value, type(value))
    except AttributeError:
        return MISSING
    except Exception:
        return COMPUTED
    return found if _is_compared(found) else COMPUTED


def _is_compared(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(_is_compared, value))
    return type(value) is BuiltinFunctionType or kind_of(value) in _COMPARED
