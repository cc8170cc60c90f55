"""Objects among a call's arguments that hold nothing but tensors and plain values.

Of other objects a signature has only the class, and a call that reads more of one runs as it was. An object that merely
holds values together (LTX Video's masks of guides) is replaced by what it holds: its tensors count as the call's own,
the rest is compared by value, and the recorded forward gets an object of the same class with these in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, NamedTuple

import torch

from ..capture import CaptureError
from ..capture.rebuilding import rebuilt
from ..reporting.reasons.calls import WRITES_ARGUMENTS

_DEEPEST = 6  # levels of nested containers
_PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device, torch.Size)
_GIVEN = ("torch", "builtins", "collections", "numpy")
#: The methods with which a class could answer by something else than what its objects hold.
_OWN = ("__getattribute__", "__getattr__", "__setattr__", "__delattr__", "__del__", "__new__", "__init_subclass__")


class Held(NamedTuple):
    """Stands for an object.

    Attributes:
        of: its class as text.
        number: its number among the call's objects, so that one which occurs twice stays one object.
        state: what it holds, by name.
    """

    of: str
    number: int
    state: dict[str, Any]


class HeldObjects:
    """The objects of this kind among one call's arguments."""

    def __init__(self) -> None:
        self._classes: dict[str, type] = {}
        self._held: dict[int, tuple[Any, Held]] = {}  # by id, with the object itself, so that its id stays its own

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
        """The reverse of :meth:`opened`, with new objects. These are added to ``made``, with what they hold."""

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
    """Check, after the recorded forward, that its objects still hold what they did.

    Raises:
        CaptureError: one doesn't. The same change would have to be made to each call's own object.
    """
    for new, state in made.values():
        now = dict(_held_by(new))
        if now.keys() != state.keys() or any(now[name] is not item for name, item in state.items()):
            raise CaptureError(WRITES_ARGUMENTS())


def _state(value: Any) -> dict[str, Any] | None:
    """What an object holds, if that is only tensors and plain values and the object is nothing more. Else None."""
    if isinstance(value, (torch.nn.Module, type, BaseException)) or callable(value):
        return None
    for kind in type(value).__mro__[:-1]:  # object is the last
        if type(kind) is not type or str(kind.__module__).partition(".")[0] in _GIVEN:
            return None
        if any(name in vars(kind) for name in _OWN):
            return None
    state = dict(_held_by(value))
    tensors = [each for each in state.values() if _is_tensor(each)]
    return state if tensors and all(_is_tensor(each) or _says_all(each) for each in state.values()) else None


def _held_by(value: Any) -> Iterator[tuple[str, Any]]:
    for name, slot in [item for kind in type(value).__mro__ for item in vars(kind).items()]:
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
    """Whether a value is plain and immutable. A list could be changed by the call, and by others."""
    if type(value) is tuple:
        return depth < _DEEPEST and all(_says_all(item, depth + 1) for item in value)
    return type(value) in _PLAIN
