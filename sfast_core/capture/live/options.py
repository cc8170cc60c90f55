"""A call's options as a recorded forward gets them: functions of others stand for live calls, what nobody should read
is marked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ...reporting.reasons.records import READS_FUNCTION, READS_LEFT, READS_OPTION
from ..bookkeeping import Bookkeeping
from ..errors import CaptureError
from .modules import modules_at_work
from .reach import kind_of_function
from .structure import is_constant
from .surroundings import Attribute, Path, Surroundings

_DEEPEST = 8
_SPECIAL = (
    "call bool int float index len iter next getitem setitem contains add radd sub rsub mul rmul truediv rtruediv neg"
    " lt le gt ge".split()
)


class Unread:
    """In the place of an option that the forward isn't to look at: it may be handed on, and live code gets the option
    itself.
    """

    __slots__ = ("around", "path")

    def __init__(self, path: Path, around: Surroundings) -> None:
        self.path = path
        self.around = around

    def _refuse(self, *_: Any, **__: Any) -> Any:
        if _touches(self.around, str(self.path[0]), READS_OPTION(name=repr(self.path[-1]))):
            raise CaptureError(READS_OPTION(name=repr(self.path[-1])))
        inside = modules_at_work()
        if inside and inside[0] is not self.around.module and _has_objects(self.around.at(self.path)):
            self.around.inside = inside  # no signature could have it: who reads it may run live
        else:
            self.around.mentioned.add(str(self.path[0]))
        raise CaptureError(READS_OPTION(name=repr(self.path[-1])))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copies and the like ask for what there may be
            raise AttributeError(name)
        return self._refuse()

    def copy(self) -> Unread:
        """Itself: options are copied on their way down."""
        return self

    def __copy__(self) -> Unread:
        return self

    def __deepcopy__(self, memo: Any) -> Unread:
        return self


def _has_objects(value: Any, depth: int = 0) -> bool:
    """Whether there is something else than tensors and plain values in lists, tuples and dicts."""
    if depth > _DEEPEST:
        return True
    if type(value) in (list, tuple):
        return any(_has_objects(item, depth + 1) for item in value)
    if type(value) is dict:
        return any(_has_objects(item, depth + 1) for item in value.values())
    return not (isinstance(value, torch.Tensor) or is_constant(value))


for _name in _SPECIAL:
    setattr(Unread, f"__{_name}__", Unread._refuse)


class LeftByLive:
    """In the place of what live code has put into a dict of the model's own: it may be handed on, and live code finds
    what is there.

    Args:
        number: of the dict.
        key: in it.
        name: of the live code.
        around: the recorded call's own things.
    """

    __slots__ = ("around", "key", "name", "number")

    def __init__(self, number: int, key: Any, name: str, around: Surroundings) -> None:
        self.number, self.key, self.name, self.around = number, key, name, around

    def _refuse(self, *_: Any, **__: Any) -> Any:
        key = repr(self.key) if is_constant(self.key) else f"by a {type(self.key).__name__}"
        reason = READS_LEFT(name=self.name, key=key)
        _touches(self.around, None, reason)
        raise CaptureError(reason)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copies and the like ask for what there may be
            raise AttributeError(name)
        return self._refuse()

    def __copy__(self) -> LeftByLive:
        return self

    def __deepcopy__(self, memo: Any) -> LeftByLive:
        return self


for _name in (*_SPECIAL, "eq", "ne", "hash", "str", "format"):
    setattr(LeftByLive, f"__{_name}__", LeftByLive._refuse)


class Foreign:
    """In the place of a function of others among the options: called while a call is recorded, it is a live call.

    Args:
        path: where it is.
        function: it.
        around: the recorded call's own things.
    """

    def __init__(self, path: Path, function: Callable[..., Any], around: Surroundings) -> None:
        self.path = path
        self.function = function
        self.around = around

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        recorder = _recorder()
        if recorder is None:
            return self.function(*args, **kwargs)
        if self.path in self.around.inside_paths:
            return recorder.call_taken_in(self, args, kwargs)
        return recorder.call_live(self, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        function = self.__dict__.get("function")
        if function is None or name.startswith("__"):
            raise AttributeError(name)
        value = getattr(function, name)
        if callable(value):
            return Foreign((*self.path, Attribute(name)), value, self.around)
        reason = READS_FUNCTION(name=repr(name), function=name_of(function))
        _touches(self.around, None, reason)
        raise CaptureError(reason)

    @property
    def kind(self) -> Any:
        """What the function has in common with others of the same code."""
        return kind_of_function(self.function)

    @property
    def name(self) -> str:
        """Whose function it is and where it was found, in words."""
        return f"{name_of(self.function)} ({' '.join(map(str, self.path))})"

    @property
    def why_live(self) -> str | None:
        """Why it isn't recorded with the model's code, where that is known."""
        return None if self.around.taken_in is None else self.around.taken_in.why_live.get(self.kind)

    def __deepcopy__(self, memo: Any) -> Foreign:
        return self


def name_of(function: Any) -> str:
    """Who made a function, as far as its name tells: ``FreeU`` for ``FreeU.execute.<locals>.patch``."""
    return str(getattr(function, "__qualname__", type(function).__qualname__)).split(".")[0]


def _touches(around: Surroundings, word: str | None, reason: str) -> bool:
    """Give the recording up where a function that is recorded with the model's code looks at what its trace can't have;
    whether one does.
    """
    recorder = _recorder()
    kind = None if recorder is None else recorder.at_work_in
    if kind is None:
        return False
    around.touched = word or reason
    recorder.refuse(reason, passing=True)
    if word is not None and around.taken_in is not None:
        around.taken_in.looked_for(kind, word)
        recorder.blamed = None  # it may be part of the next call's signature
    return True


def _recorder() -> Any:
    """The one at work in this thread, or None."""
    modes: list[Any] = torch.overrides._get_current_function_mode_stack()
    return next((mode for mode in reversed(modes) if isinstance(mode, Bookkeeping)), None)


class Traced:
    """Makes options for a recorded forward, and knows afterwards which thing of these stands for which.

    Args:
        around: the call's own things.
    """

    def __init__(self, around: Surroundings) -> None:
        self.around = around
        around.traced = self
        self._made: dict[int, tuple[Any, Path, Any]] = {}  # id -> what was made, its path, a shallow copy
        self._of: dict[Path, Any] = {}

    def table(self, value: Any, path: Path) -> Any:
        """Containers with functions in them: containers anew, each function a :class:`Foreign`."""
        made: Any
        if isinstance(value, type) or value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, Mapping):
            made = {key: self.table(item, (*path, key)) for key, item in value.items()}
        elif isinstance(value, (list, tuple)):
            made = [self.table(item, (*path, index)) for index, item in enumerate(value)]
            made = made if isinstance(value, list) else tuple(made)
        else:
            made = Foreign(path, value, self.around) if callable(value) else Unread(path, self.around)
        return self._keep(made, path)

    def unread(self, path: Path) -> Any:
        """A mark in the place of what is there."""
        return self._keep(Unread(path, self.around), path)

    def handed(self, value: Any, path: Path) -> Any:
        """``value``, which stands for what is there itself."""
        return self._keep(value, path)

    def _keep(self, made: Any, path: Path) -> Any:
        copy = dict(made) if isinstance(made, dict) else list(made) if isinstance(made, (list, tuple)) else None
        self._made[id(made)] = made, path, copy
        self._of[path] = made
        return made

    def path(self, value: Any) -> Path | None:
        """Which of the options a value stands for, as long as the model hasn't changed it; None for anything else."""
        if isinstance(value, (Unread, Foreign)):
            return value.path
        found = self._made.get(id(value))
        if found is None or found[0] is not value:
            return None
        _, path, copy = found
        if isinstance(value, dict) and not _same(value, copy):
            return None
        if isinstance(value, list) and (
            len(value) != len(copy) or any(a is not b for a, b in zip(value, copy, strict=True))
        ):
            return None
        return path

    def stand_in(self, path: Path) -> Any:
        """What stands for the option there, or None."""
        return self._of.get(path)


def _same(one: dict[Any, Any], other: dict[Any, Any]) -> bool:
    return len(one) == len(other) and all(key in other and item is other[key] for key, item in one.items())


class Again:
    """In the place of a function of others where the original forward finishes a call that it has run in already."""

    def __init__(self, path: Path, function: Callable[..., Any], around: Surroundings) -> None:
        self._path, self._function, self._around = path, function, around

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._around.again(self._path, self._function, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        function = self.__dict__.get("_function")
        if function is None or name.startswith("__"):
            raise AttributeError(name)
        value = getattr(function, name)
        return Again((*self._path, Attribute(name)), value, self._around) if callable(value) else value


def again(value: Any, path: Path, around: Surroundings) -> Any:
    """Containers with functions in them, each function an :class:`Again`."""
    if isinstance(value, type) or value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {key: again(item, (*path, key), around) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [again(item, (*path, index), around) for index, item in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    return Again(path, value, around) if callable(value) else value


def outline(value: Any) -> Any:
    """Where functions are in containers, and what else is there: a plain value that is another where a recorded forward
    may go another way.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {key: outline(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [outline(item) for item in value]
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__} {id(value)}"
    return "a function" if callable(value) else f"a {type(value).__qualname__}"
