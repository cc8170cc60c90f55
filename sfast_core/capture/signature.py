"""What keys a cache entry: everything about a call's arguments but the values of its tensors, autocast, and PyTorch's
settings.

A call's arguments are walked once: tensors are collected in order, and all the rest goes into a hashable key. What
can't be compared by value (a function, an iterator) can't be keyed and raises, so that the caller runs eager. Of an
object of an unknown class the key has the class: whether the call reads more of it, is known when it has been recorded.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Hashable, Mapping
from pathlib import PurePath
from types import MappingProxyType
from typing import Any

import torch

from ..reporting.reason import Reason
from ..reporting.reasons.calls import HOLDS_ITSELF, NOT_KEYED, NOT_STRIDED, TENSOR_KEY, TOO_DEEP, TOO_MANY
from .errors import CaptureError
from .guards import is_object
from .torch_state import changed_setting, torch_state, unusual
from .values import PLAIN_CLASSES

_BY_VALUE = (*PLAIN_CLASSES, bytes, enum.Enum, PurePath)
_ENDS = ("start", "stop", "step")
_MOSTLY = frozenset((bool, int, str, type(None)))  #: those of them that most are
_DEEPEST = 50  #: containers in containers; a step's options have 6
_MOST = 100_000  #: values in all: more would take longer to compare than a call may take

#: where a walk is: in which argument, and then from container to container. Put in words for an error alone
Place = str | tuple["Place", Any]


def autocast_state() -> tuple[tuple[str, torch.dtype], ...]:
    """The device types that autocast is on for, each with the dtype that it computes in."""
    return tuple((kind, torch.get_autocast_dtype(kind)) for kind in ("cuda", "cpu") if torch.is_autocast_enabled(kind))


class Signature:
    """The key of a call, as it is made here and now, and its tensors in the order of the walk.

    Args:
        args: the call's arguments.
        kwargs: its keyword arguments.
        beside: what else there is that other calls have to have.
        placed: tensors that no argument has and that the call reads all the same, by their places.

    Attributes:
        key: hashable, equal for calls that one cache entry serves.
        autocast: :func:`autocast_state` at the call.
        state: :func:`torch_state` at the call.
        tensors: each distinct tensor object once.
        objects: each distinct object of which the key has nothing but the class.

    Raises:
        CaptureError: an argument can't be compared by value, or holds itself, or is too much; or see
        :func:`torch_state`.
    """

    __slots__ = ("autocast", "key", "objects", "state", "tensors")

    def __init__(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        beside: Hashable = None,
        placed: Mapping[Any, torch.Tensor] = MappingProxyType({}),
    ) -> None:
        self.objects: list[ArgumentObject] = []
        walk = _Walk(self.objects)
        self.autocast, self.state, self.tensors = autocast_state(), torch_state(), walk.tensors
        given = walk(args, "args"), walk(kwargs, "kwargs")
        if placed:
            beside = beside, tuple([(way, walk(tensor, str(way))) for way, tensor in placed.items()])
        self.key: Hashable = (*given, self.autocast, self.state, beside)

    @property
    def forms(self) -> Hashable:
        """The forms of the tensors and autocast: what ``key`` has less the other arguments' values."""
        return (*map(_form, self.tensors), self.autocast)

    def __str__(self) -> str:
        """The first tensors, autocast and PyTorch's unusual settings: to tell one signature from another by eye."""
        shown = [f"{str(tensor.dtype)[6:]}{list(tensor.shape)}" for tensor in self.tensors[:6]]
        more = ["..."] if len(self.tensors) > 6 else []
        autocast = (f"autocast to {str(dtype)[6:]} on {kind}" for kind, dtype in self.autocast)
        return ", ".join([*shown, *more, *autocast, *unusual(self.state)])


class ArgumentObject:
    """An object of an unknown class among a call's arguments."""

    __slots__ = ("place", "value")

    def __init__(self, value: Any, place: Place) -> None:
        self.value = value
        self.place = place

    @property
    def name(self) -> str | None:
        """The key of the dict that it is in, itself or the lists around it; None where that is no text."""
        place = self.place
        while isinstance(place, tuple):
            place, key = place
            if isinstance(key, str):
                return key
        return None

    @property
    def slot(self) -> Hashable:
        """Where the object is and of which class: one for all calls that have one of them there."""
        return (self.place, type(self.value))

    @property
    def reason(self) -> Reason:
        """Why a call that reads of it has no signature."""
        return _unkeyed(self.value, self.place)


def arguments_key(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Hashable:
    """As :attr:`Signature.key`, of calls among which PyTorch's settings stay what they are.

    Raises:
        CaptureError: an argument can't be compared by value.
    """
    walk = _Walk(None)
    return (walk(args, "args"), walk(kwargs, "kwargs"), autocast_state())


class Containers:
    """The containers that a walk is inside of, and how much it has seen: arguments may hold themselves, or be made to
    be endless.
    """

    def __init__(self) -> None:
        self._inside: set[int] = set()
        self._left = _MOST

    def enter(self, container: Any, place: Place) -> None:
        """The caller walks the items of ``container`` now, and then has to :meth:`leave` it.

        Raises:
            CaptureError: it holds itself, or is too deep or too much to be compared at every call. The walk is over
            then.
        """
        inside, identity = self._inside, id(container)
        self._left -= len(container) + 1
        if identity in inside:
            raise CaptureError(HOLDS_ITSELF(place=_named(place)))
        if len(inside) >= _DEEPEST:
            raise CaptureError(TOO_DEEP(place=_named(place), most=_DEEPEST))
        if self._left < 0:
            raise CaptureError(TOO_MANY(place=_named(place), most=_MOST))
        inside.add(identity)

    def leave(self, container: Any) -> None:
        """Note that the walk has left a container."""
        self._inside.remove(id(container))


def _named(place: Place) -> str:
    """A place in words, its middle left out where it is long."""
    steps: list[str] = []
    while isinstance(place, tuple):
        place, key = place
        steps.append(f"[{key!r}]")
    whole = place + "".join(reversed(steps))
    return whole if len(whole) <= 200 else f"{whole[:120]}...{whole[-77:]}"


def _unkeyed(value: Any, place: Place) -> Reason:
    return NOT_KEYED(place=_named(place), kind=type(value).__name__)


class _Walk:
    """One walk through a call's arguments. ``tensors``: each distinct tensor object once, in its order.

    Args:
        objects: where to put those of unknown classes. None: these can't be keyed.
    """

    def __init__(self, objects: list[ArgumentObject] | None) -> None:
        self.tensors: list[torch.Tensor] = []
        self._objects = objects
        self._index: dict[int, int] = {}
        self._containers = Containers()

    def __call__(self, value: Any, place: Place) -> Hashable:
        kind = type(value)
        if kind in _MOSTLY:
            return (kind, value)
        if isinstance(value, torch.Tensor):
            return self._tensor(value, place)
        items: Hashable
        if isinstance(value, (tuple, list)):
            self._containers.enter(value, place)
            items = tuple([self(item, (place, index)) for index, item in enumerate(value)])
        elif isinstance(value, dict):
            self._containers.enter(value, place)
            items = tuple([(self._name(key, place), self(item, (place, key))) for key, item in value.items()])
        elif isinstance(value, float):
            return (kind, value.hex())  # keeps 0.0 and -0.0 apart, and finds nan again
        elif isinstance(value, _BY_VALUE):
            return (kind, value)  # the type keeps 1, 1.0 and True apart
        elif kind in (slice, range):
            return (kind, *(self(part, (place, name)) for name in _ENDS for part in [getattr(value, name)]))
        elif kind in (set, frozenset) and all(isinstance(item, _BY_VALUE) for item in value):
            return (kind, *(self(item, place) for item in value))  # in the order in which it is gone through
        elif _is_number_of_numpys(value):
            return (kind, value.dtype.str, value.tobytes())
        else:
            return self._object(value, place)
        self._containers.leave(value)
        return (kind, items)

    def _name(self, key: Any, place: Place) -> Hashable:
        """A key of a dict: text as it is, as most are."""
        if type(key) is str:
            return key
        if isinstance(key, torch.Tensor):
            raise CaptureError(TENSOR_KEY(place=_named(place)))
        return self(key, place) if isinstance(key, (*_BY_VALUE, tuple)) else (type(key), key)

    def _object(self, value: Any, place: Place) -> Hashable:
        if self._objects is None or not is_object(value):
            raise CaptureError(_unkeyed(value, place))
        index = next((index for index, known in enumerate(self._objects) if known.value is value), len(self._objects))
        if index == len(self._objects):
            self._objects.append(ArgumentObject(value, place))
        return (type(value), "object", index)

    def _tensor(self, tensor: torch.Tensor, place: Place) -> Hashable:
        index = self._index.get(id(tensor))
        if index is not None:  # the same object twice: an entry traced so must not serve two different tensors
            return ("same tensor", index)
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
            raise CaptureError(NOT_STRIDED(place=_named(place), kind=type(tensor).__name__, layout=tensor.layout))
        self._index[id(tensor)] = len(self.tensors)
        self.tensors.append(tensor)
        attributes = tensor.__dict__
        form = _form(tensor) if type(tensor) is torch.Tensor else (_form(tensor), "parameter")
        return (form, self(attributes, (place, "__dict__"))) if attributes else form  # what others have put on it


def _is_number_of_numpys(value: Any) -> bool:
    """Whether it is a number or a text of NumPy's, which stays what it is; a structure doesn't."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.generic) and not isinstance(value, (numpy.void, numpy.object_))


def _form(tensor: torch.Tensor) -> Hashable:
    return (tensor.shape, tensor.dtype, tensor.stride(), tensor.device, tensor.is_conj(), tensor.is_neg())


def difference(key: Any, other: Any) -> str:
    """Where the key of a signature is not that of another: ``kwargs['options']['step']``, say, or a setting of
    PyTorch's by its name.
    """
    if key[:4] == other[:4]:
        return "what comes along for code of others"
    named = zip(key[:3], other[:3], ("args", "kwargs", "autocast"), strict=True)
    return (
        next((_place(*each) for each in named if each[0] != each[1]), None)
        or f"PyTorch's setting {other_setting(key, other)!r}"
    )


def other_setting(key: Any, other: Any) -> str | None:
    """PyTorch's setting that is another in the key of one signature than in that of another one, where no argument is;
    else None.
    """
    return changed_setting(key[3], other[3]) if key[:3] == other[:3] else None


def _place(now: Any, then: Any, path: str) -> str:
    """Where, at ``path`` or below it, two parts of keys differ, which they do."""
    if not (now and then and now[0] is then[0] and now[0] in (tuple, list, dict) and len(now[1]) == len(then[1])):
        return path
    at = next(index for index, pair in enumerate(zip(now[1], then[1], strict=True)) if pair[0] != pair[1])
    one, other = now[1][at], then[1][at]
    if now[0] is not dict:
        return _place(one, other, f"{path}[{at}]")
    name = one[0] if isinstance(one[0], str) else one[0][1]
    return _place(one[1], other[1], f"{path}[{name!r}]") if one[0] == other[0] else path


def snapshot(value: Any) -> Any:
    """Copy the containers of an argument, not its tensors: some forwards pop their lists empty.

    Raises:
        CaptureError: it holds itself, or is too deep or too much to be part of a signature.
    """
    return _copy(value, Containers(), "an argument")


def _copy(value: Any, containers: Containers, place: Place) -> Any:
    kind = type(value)
    if kind not in (dict, list, tuple):
        return value
    containers.enter(value, place)
    if kind is dict:
        copy = {key: _copy(item, containers, (place, key)) for key, item in value.items()}
    else:
        copy = kind([_copy(item, containers, (place, index)) for index, item in enumerate(value)])
    containers.leave(value)
    return copy
