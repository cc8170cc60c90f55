"""What of a sampling step's arguments may steer the model's forward, and what only travels along."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...capture import CaptureError, is_object, snapshot

NAME = "transformer_options"
#: Read outside the model's forward, or by patches alone, and different at every step. They are no part of a signature, and a traced
#: forward sees them in a form that can't be read unnoticed: tensors are no inputs of the trace, lists refuse.
_TRAVELLING = frozenset(
    "sigmas sample_sigmas uuids cond_or_uncond wrappers callbacks prefetch_dynamic_vbars multigpu_thread_pool multigpu_thread_device "
    "context_window easycache patches patches_replace".split()
)


class _Unread(list):  # type: ignore[type-arg]
    """A list that may be handed on in a traced forward but not read there."""

    name = ""

    def _refuse(self, *_: Any) -> Any:
        raise CaptureError(f"the model reads {self.name!r} from its options, which is another at every step")

    __getitem__ = __iter__ = __len__ = __contains__ = __eq__ = __ne__ = __reversed__ = __add__ = _refuse
    index = count = pop = _refuse
    __hash__ = None  # type: ignore[assignment]

    def copy(self) -> _Unread:
        """Itself: options are copied on their way down."""
        return self

    def __copy__(self) -> _Unread:
        return self

    def __deepcopy__(self, memo: Any) -> _Unread:
        return self


def _unread(name: str, value: Any) -> Any:
    if type(value) is not list:
        return value
    kept = _Unread(value)
    kept.name = name
    return kept


@dataclass(frozen=True)
class Steering:
    """A call's arguments as far as they may steer the forward.

    Attributes:
        args: the positional arguments, in containers of their own (some forwards pop ``control`` empty).
        kwargs: the keyword arguments, likewise.
        place: the position or the name of the transformer options; None where the call has none.
        travelling: the options that were left out.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    place: int | str | None
    travelling: dict[str, Any]

    def completed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """``original`` for arguments like these, which gives it the options that were left out, unreadable."""

        def forward(*args: Any, **kwargs: Any) -> Any:
            if isinstance(self.place, int):
                args = (*args[: self.place], {**args[self.place], **self.travelling}, *args[self.place + 1 :])
            elif self.place is not None:
                kwargs = {**kwargs, self.place: {**kwargs[self.place], **self.travelling}}
            return original(*args, **kwargs)

        return forward


def steering(args: tuple[Any, ...], kwargs: Mapping[str, Any], other: str = "another node") -> Steering:
    """Take a call's arguments apart.

    Args:
        args: the call's positional arguments.
        kwargs: its keyword arguments.
        other: who puts functions into the options, as this host calls them.

    Raises:
        CaptureError: other nodes' functions run inside the forward. They may read anything.
    """
    place = options_place(args, kwargs)
    if place is None:
        return Steering(snapshot(args), snapshot(dict(kwargs)), None, {})
    options = args[place] if isinstance(place, int) else kwargs[place]
    _refuse_functions(options, other)
    steers = snapshot({key: value for key, value in options.items() if key not in _TRAVELLING})
    travelling = {key: _unread(key, value) for key, value in options.items() if key in _TRAVELLING}
    if isinstance(place, int):
        args = (*args[:place], steers, *args[place + 1 :])
        return Steering(snapshot(args), snapshot(dict(kwargs)), place, travelling)
    return Steering(snapshot(args), snapshot({**kwargs, place: steers}), place, travelling)


def options_place(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int | str | None:
    """Where the transformer options are among a call's arguments: models take them by name or at a position of their own."""
    if isinstance(kwargs.get(NAME), dict):
        return NAME
    for index in range(len(args) - 1, -1, -1):
        if isinstance(args[index], dict) and not _TRAVELLING.isdisjoint(args[index]):
            return index
    return None


def options_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The transformer options of a call, empty where it has none."""
    place = options_place(args, kwargs)
    return {} if place is None else args[place] if isinstance(place, int) else kwargs[place]


def _refuse_functions(options: Mapping[str, Any], other: str) -> None:
    patches = [
        f"{name} ({_owner(value)})"
        for table in ("patches", "patches_replace")
        for name, value in (options.get(table) or {}).items()
        if value
    ]
    if patches:
        raise CaptureError(f"{other} patches the model: {', '.join(sorted(patches))}")
    for name, value in options.items():
        if callable(value) and name not in _TRAVELLING and not is_object(value):  # of an object it is found out whether the model reads it
            raise CaptureError(f"{other} puts a function into the model's options: {name} ({_owner(value)})")


def _owner(functions: Any) -> str:
    """Who made a patch, as far as its first function's name tells: ``FreeU`` for ``FreeU.execute.<locals>.patch``."""
    if isinstance(functions, Mapping):
        functions = list(functions.values())
    first = functions[0] if isinstance(functions, (list, tuple)) else functions
    return str(getattr(first, "__qualname__", type(first).__qualname__)).split(".")[0]
