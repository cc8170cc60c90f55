"""Objects among a call's arguments that hold nothing but tensors and plain values.

Of an object a signature has nothing but the class, and a call that reads more of it runs as it was. One that only holds
its values together (LTX Video's masks of guides) goes as what it holds: the tensors are the
call's own, the rest is compared by value, and the recorded forward gets an object of the same class with these in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, NamedTuple

import torch

from ..capture import CaptureError
from ..capture.rebuilding import rebuilt
from ..reporting.reasons.calls import WRITES_ARGUMENTS

_DEEPEST = 6  # containers within each other
_PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device, torch.Size)
_GIVEN = ("torch", "builtins", "collections", "numpy")
#: What lets a class answer otherwise than by what its objects hold.
_OWN = ("__getattribute__", "__getattr__", "__setattr__", "__delattr__", "__del__", "__new__", "__init_subclass__")


class Held(NamedTuple):
    """Stands for an object.

    Attributes:
        of: its class in words.
        number: which of the call's objects it is: one that is at two places is one object.
        state: what it holds, by name.
    """

    of: str
    number: int
    state: dict[str, Any]


class HeldObjects:
    """Those among one call's arguments."""

    def __init__(self) -> None:
        self._classes: dict[str, type] = {}
        self._held: dict[int, tuple[Any, Held]] = {}  # with the object itself: another would have its id later

    def __bool__(self) -> bool:
        return bool(self._held)

    def opened(self, value: Any) -> Any:
        """``value`` with a :class:`Held` in the place of each such object; the very same where there is none in it, or
        where it holds itself.
        """
        try:
            return value if type(value) in _PLAIN else rebuilt(value, self._open, anew=False)
        except CaptureError:
            return value

    def _open(self, value: Any, key: Any) -> Any:
        kind = type(value)
        if kind in _PLAIN or kind in (torch.Tensor, list, tuple, dict):
            return value
        if id(value) not in self._held:
            if (state := _state(value)) is None:
                return value
            name = f"{kind.__module__}.{kind.__qualname__} {id(kind)}"
            self._classes[name] = kind
            self._held[id(value)] = value, Held(name, len(self._held), state)
        return self._held[id(value)][1]

    def closed(self, value: Any, made: dict[int, tuple[Any, dict[str, Any]]]) -> Any:
        """What :meth:`opened` was given, with objects anew, which go into ``made`` with what they hold."""

        def close(value: Any, key: Any) -> Any:
            if type(value) is not Held:
                return value
            if value.number not in made:
                new: Any = object.__new__(self._classes[value.of])
                for name, item in value.state.items():
                    object.__setattr__(new, name, item)
                made[value.number] = new, value.state
            return made[value.number][0]

        return rebuilt(value, close, anew=False)


def check_unchanged(made: dict[int, tuple[Any, dict[str, Any]]]) -> None:
    """The recorded forward is through: its objects are to hold what they did.

    Raises:
        CaptureError: one holds something else. The call's own object would have to be given that at each call.
    """
    for new, state in made.values():
        now = dict(_held_by(new))
        if now.keys() != state.keys() or any(now[name] is not item for name, item in state.items()):
            raise CaptureError(WRITES_ARGUMENTS())


def _state(value: Any) -> dict[str, Any] | None:
    """What an object holds, where that is tensors and plain values alone and all that there is to it."""
    kind = type(value)
    if type(kind) is not type or str(kind.__module__).partition(".")[0] in _GIVEN:
        return None
    if isinstance(value, (torch.nn.Module, type, BaseException)) or callable(value) or kind.__bases__ != (object,):
        return None
    if any(name in vars(kind) for name in _OWN):
        return None
    state = dict(_held_by(value))
    tensors = [each for each in state.values() if _is_tensor(each)]
    return state if tensors and all(_is_tensor(each) or _says_all(each) for each in state.values()) else None


def _held_by(value: Any) -> Iterator[tuple[str, Any]]:
    for name, slot in vars(type(value)).items():
        if isinstance(slot, MemberDescriptorType):
            try:
                yield name, slot.__get__(value)
            except AttributeError:  # not set
                continue
        elif isinstance(slot, GetSetDescriptorType) and name == "__dict__":
            yield from value.__dict__.items()


def _is_tensor(value: Any) -> bool:
    return type(value) in (torch.Tensor, torch.nn.Parameter)


def _says_all(value: Any, depth: int = 0) -> bool:
    """Whether a plain value is all by itself; a list that the call changes would be another's, too."""
    if type(value) is tuple:
        return depth < _DEEPEST and all(_says_all(item, depth + 1) for item in value)
    return type(value) in _PLAIN
