"""What sort of value something is, for whoever has to tell later whether it changed."""

from __future__ import annotations

import array
import collections
import contextvars
import ctypes
import datetime
import decimal
import enum
import fractions
import functools
import io
import logging
import operator
import random
import re
import threading
import types
import typing
import uuid
import weakref
from pathlib import PurePath
from typing import Any

import torch

from ...weights.part import is_plain
from .given import counts_unseen


class Kind(enum.Enum):
    """How a value is compared."""

    VALUE = enum.auto()  #: by type and value
    TENSOR = enum.auto()  #: by what a tensor is, not by what is in it: that is data
    SAME = enum.auto()  #: by being the very same object
    SEQUENCE = enum.auto()  #: list, tuple, deque, the view of a dict: by what is in it, in order
    MAPPING = enum.auto()  #: dict and its like: by keys, values and order
    SET = enum.auto()  #: likewise: in which order one is gone through depends on how it was made
    FUNCTION = enum.auto()  #: by code, defaults and what it closes over
    BOUND = enum.auto()  #: a method of an object: by both
    PARTIAL = enum.auto()
    MODULE = enum.auto()  #: of torch: the same, with what is read of it
    OBJECT = enum.auto()  #: by what is read of it
    CLASS = enum.auto()
    FILE = enum.auto()  #: a module of Python's
    ASKED = enum.auto()  #: asked for its value each time
    CACHED = enum.auto()  #: an ``lru_cache``
    STATEFUL = enum.auto()  #: has a state that can't be seen, and that use changes: an iterator, random numbers
    OPAQUE = enum.auto()  #: nothing can be seen of it

    # Enum's own is a function of Python's, and sets of kinds are asked for each value that is read
    __hash__ = object.__hash__


_VALUES = frozenset(
    {
        *(bool, int, float, complex, str, bytes, type(None), type(...), type(NotImplemented), range, slice),
        *(torch.dtype, torch.device, torch.memory_format, torch.layout, torch.Size),
        *(datetime.datetime, datetime.date, datetime.time, datetime.timedelta),
        *(decimal.Decimal, fractions.Fraction, uuid.UUID),
    }
)
_SAME = (
    *(operator.attrgetter, operator.itemgetter, operator.methodcaller),
    *(types.BuiltinFunctionType, types.MethodWrapperType, types.WrapperDescriptorType, types.MethodDescriptorType),
    *(types.ClassMethodDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType, types.CodeType),
    *(types.GenericAlias, types.UnionType, typing.TypeVar),
    *(type(typing.List[int]), type(typing.Union[int, str])),  # noqa: UP006, UP007
    *(threading.Thread, threading.Event, threading.Condition, type(threading.Lock()), type(threading.RLock())),
    *(re.Pattern, contextvars.Token, enum.Enum),
)
#: Numbers, arrays and structures of C's.
_CData = ctypes.c_int.__mro__[-2]
_POINTERS = (ctypes._Pointer, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_wchar_p, ctypes.py_object)
_SEQUENCES: tuple[type, ...] = (list, tuple, collections.deque, type({}.keys()), type({}.values()), type({}.items()))
WEAK = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary)
_MAPPINGS = (dict, types.MappingProxyType, *WEAK)
_ASKED = (
    *(contextvars.ContextVar, weakref.ref, weakref.finalize, logging.Logger),
    *(bytearray, array.array, memoryview, _CData),
)
_CACHED = type(functools.lru_cache(lambda: None))
_CARRIERS = (staticmethod, classmethod, property, functools.cached_property)
#: Functions of C++ and Cython: what they keep is out of reach.
_OF_C = ("nanobind", "pybind11_builtins", "PyCapsule", "cython_function_or_method", "fused_cython_function")
_ARRAY_BYTES = 1 << 20  #: arrays of more aren't compared at each call
_TORCH = ("torch", "triton", "numpy")
#: Of PyTorch's classes: whose objects keep what users have set.
_SET_BY_USERS = tuple(
    "torch.distributions. torch.optim. torch.amp.grad_scaler torch.ao. torch.utils.data. torch.nn.utils.".split()
)


def carried(value: Any) -> Any:
    """The function inside a static or class method or a property; any other value as it is."""
    if isinstance(value, (staticmethod, classmethod)):
        return value.__func__
    if isinstance(value, property):
        return value.fget
    return value.func if isinstance(value, functools.cached_property) else value


def kind_of(value: Any) -> Kind:
    """How ``value`` is compared."""
    cls = type(value)
    found = _KINDS.get(cls)
    if found is not None:
        return found
    if issubclass(cls, torch.Tensor):
        return Kind.TENSOR
    if issubclass(cls, torch.nn.Module):
        return Kind.MODULE
    if issubclass(cls, type):
        return Kind.CLASS
    if issubclass(cls, _SAME) or issubclass(cls, _CARRIERS):
        return Kind.SAME
    if issubclass(cls, _SEQUENCES):
        return Kind.SEQUENCE
    if issubclass(cls, _MAPPINGS):
        return Kind.MAPPING
    if issubclass(cls, (set, frozenset)):
        return Kind.SET
    if issubclass(cls, (functools.partial, functools.partialmethod)):
        return Kind.PARTIAL
    if issubclass(cls, _POINTERS):
        return Kind.OPAQUE
    if issubclass(cls, _ASKED):
        return Kind.ASKED
    if issubclass(cls, types.ModuleType):
        return Kind.FILE
    if issubclass(cls, (PurePath, bool, int, float, complex, str, bytes)):
        return Kind.VALUE
    return _kind_of_object(value, cls)


def _kind_of_object(value: Any, cls: type) -> Kind:
    home = str(cls.__module__).partition(".")[0]  # a property in proxies
    if home == "numpy":
        return _kind_of_numpy(value, cls)
    if issubclass(cls, (torch._C.Generator, random.Random, io.IOBase)) or any(map(counts_unseen, cls.__mro__)):
        return Kind.STATEFUL
    if home in _OF_C or cls.__name__ in _OF_C:
        return Kind.SAME
    if home in _TORCH or home.startswith("torch"):
        return Kind.OBJECT if str(cls.__module__).startswith(_SET_BY_USERS) and cls.__dictoffset__ else Kind.SAME
    if cls.__dictoffset__ != 0 or _slots(cls):
        return Kind.OBJECT
    return Kind.STATEFUL if hasattr(cls, "__next__") else Kind.OPAQUE


def _kind_of_numpy(value: Any, cls: type) -> Kind:
    if hasattr(value, "tobytes") and hasattr(value, "dtype"):
        if getattr(value.dtype, "hasobject", False) or value.nbytes > _ARRAY_BYTES:
            return Kind.OPAQUE
        return Kind.ASKED
    if str(cls.__module__).startswith("numpy.random"):
        return Kind.STATEFUL
    return Kind.OBJECT if cls.__dictoffset__ else Kind.SAME  # a polynomial, say


def is_object(value: Any) -> bool:
    """Whether a value is an object of a class that Python code defines:
    what is done with it shows in code that runs.
    """
    return kind_of(value) in (Kind.OBJECT, Kind.MODULE)


def _slots(cls: type) -> bool:
    return any("__slots__" in vars(base) for base in cls.__mro__)


_KINDS: dict[type, Kind] = {
    **dict.fromkeys(_VALUES, Kind.VALUE),
    torch.Tensor: Kind.TENSOR,
    torch.nn.Parameter: Kind.TENSOR,
    type: Kind.CLASS,
    list: Kind.SEQUENCE,
    tuple: Kind.SEQUENCE,
    dict: Kind.MAPPING,
    set: Kind.SET,
    frozenset: Kind.SET,
    types.FunctionType: Kind.FUNCTION,
    types.MethodType: Kind.BOUND,
    types.BuiltinFunctionType: Kind.SAME,
    types.ModuleType: Kind.FILE,
    functools.partial: Kind.PARTIAL,
    object: Kind.SAME,
    _CACHED: Kind.CACHED,
    threading.local: Kind.OBJECT,
}


def answer(value: Any) -> Any:
    """What a value of kind ``ASKED`` says now: something that compares by value, or an object that is compared by
    identity.
    """
    if isinstance(value, contextvars.ContextVar):
        try:
            return value.get()
        except LookupError:
            return None
    if isinstance(value, logging.Logger):
        levels = (value.level, value.getEffectiveLevel(), value.disabled, value.manager.disable)
        return (*levels, " ".join(str(id(each)) for each in (*value.handlers, *value.filters)))
    if isinstance(value, weakref.ref):
        return value() is not None  # it never leads to another object, and what it leads to isn't held here
    if isinstance(value, weakref.finalize):  # what it keeps is in a table of its class's
        return (value.alive, value.atexit)
    if hasattr(value, "dtype"):
        return (str(value.dtype), value.shape, value.strides, value.flags.num, value.tobytes())
    return bytes(value)


class TensorNote:
    """What a tensor was that isn't held.

    Args:
        tensor: which.
        marks: what was read of what others had put on it.
        exact: no other is as good.
        weight: the table and the name of the weight that it is: the trace reads what is there.
    """

    __slots__ = ("marks", "only", "was", "weight")

    def __init__(
        self,
        tensor: torch.Tensor,
        marks: dict[str, Any] | None = None,
        exact: bool = False,
        weight: tuple[dict[str, Any], str] | None = None,
    ) -> None:
        self.was, self.marks, self.weight = what_a_tensor_is(tensor), marks or {}, weight
        self.only = weakref.ref(tensor) if exact else None

    def fits(self, now: Any) -> bool:
        """Whether ``now`` is as good as the tensor was, but for its marks."""
        return (
            isinstance(now, torch.Tensor)
            and (self.only is None or self.only() is now)
            and (self.weight is None or self.weight[0].get(self.weight[1]) is now)
            and what_a_tensor_is(now) == self.was
        )


class ContentNote:
    """What was in a container that isn't held, since tensors are in it that are somebody else's to let go.

    Args:
        cls: the container's class.
        items: what was read of it, by key or index.
        whole: whether that is all that was in it, and in this order.
    """

    __slots__ = ("cls", "items", "whole")

    def __init__(self, cls: type, items: list[tuple[Any, Any]], whole: bool) -> None:
        self.cls, self.items, self.whole = cls, items, whole


class ByValue:
    """An object or a function that another may stand for that is as good, also where it is still there itself: then it
    is what it is by now.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def what_a_tensor_is(tensor: torch.Tensor) -> tuple[Any, ...]:
    """All of a tensor that steers code, but for its values."""
    cls = type(tensor)
    if not is_plain(tensor) or tensor.is_nested:
        return (cls, id(tensor))
    laid_out = tensor.dim() in (4, 5) and issubclass(cls, torch.nn.Parameter)  # by the weight store, for convolutions
    strides = None if laid_out or tensor.layout is not torch.strided else tensor.stride()
    return (
        cls,
        tensor.shape,
        strides,
        tensor.dtype,
        tensor.layout,
        tensor.device,
        tensor.is_conj(),
        tensor.is_neg(),
        tensor.requires_grad,
    )


def same_value(now: Any, then: Any) -> bool:
    """Whether two simple values are the same to whoever reads them: of one type, ``0.0`` apart from ``-0.0``, NaN equal
    to NaN.
    """
    if type(now) is not type(then):
        return False
    if isinstance(then, float):
        return bool(now.hex() == then.hex())
    if isinstance(then, complex):
        return (now.real.hex(), now.imag.hex()) == (then.real.hex(), then.imag.hex())
    if isinstance(then, (slice, range)):
        return all(map(same_value, (now.start, now.stop, now.step), (then.start, then.stop, then.step)))
    return bool(now == then)
