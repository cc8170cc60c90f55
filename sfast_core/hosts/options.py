"""Takes a sampling step's arguments apart: those that may steer the model's forward are part of the signature, others
only travel along.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ..capture import Surroundings, snapshot
from ..capture.live import TakenIn, TakenInPaths, Traced, again, functions_in, outline
from .handed_back import HandedBack
from .held import HeldObjects, check_unchanged
from .hook import HookedCall

NAME = "transformer_options"
#: Options that are read outside the model's forward, or by patches alone, and differ from step to step. They aren't
#: part of a signature, and a traced forward gets them in a form that it can't read unnoticed: tensors aren't inputs of
#: the trace, lists refuse to be read.
_TRAVELLING = frozenset(
    "sigmas sample_sigmas uuids cond_or_uncond wrappers callbacks prefetch_dynamic_vbars multigpu_thread_pool"
    " multigpu_thread_device context_window easycache patches patches_replace".split()
)


PROMPTS = frozenset({"cond_or_uncond"})  #: the options that tell which prompts a call is for
_TABLES = ("patches", "patches_replace")  #: the options with other nodes' functions
_DEEPEST = 8  # levels of nested containers that are searched for functions


@dataclass(frozen=True)
class Steering:
    """A call's arguments without what can't steer the forward.

    Attributes:
        args: the positional arguments, in copies of their containers (some forwards pop ``control`` empty).
        kwargs: the keyword arguments, likewise.
        place: the position or the name of the transformer options; None where the call has none.
        travelling: makes the options that were left out, in the form that a recorded forward gets.
        around: the call's own options and objects, for functions that run live in it.
        held: the objects among the arguments that are replaced by what they hold.
        handed_back: copies of the arguments' lists and dicts, where the caller looks at these again after the call.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    place: int | str | None
    travelling: Callable[[], dict[str, Any]]
    around: Surroundings | None = None
    held: HeldObjects | None = None
    handed_back: HandedBack | None = None

    def completed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A function of arguments like these that calls ``original``, with the options added that were left out."""

        def forward(*args: Any, **kwargs: Any) -> Any:
            given, made = None, dict[int, Any]()
            if self.held is not None:
                args, kwargs = self.held.closed(args, made), self.held.closed(kwargs, made)
            if isinstance(self.place, int):
                given = {**args[self.place], **self.travelling()}
                args = (*args[: self.place], given, *args[self.place + 1 :])
            elif self.place is not None:
                given = {**kwargs[self.place], **self.travelling()}
                kwargs = {**kwargs, self.place: given}
            if self.around is not None:
                self.around.given = given
            result = original(*args, **kwargs)
            check_unchanged(made)
            if self.handed_back is not None:
                self.handed_back.hand_back()
            return result

        return forward


def live_steering(
    call: HookedCall,
    mentions: Callable[[str], bool],
    apart: frozenset[str] = frozenset(),
    taken_in: TakenIn | None = None,
    seen: bool = False,
) -> Steering:
    """Take the arguments apart of a call in which other people's functions may run live.

    Args:
        call: the call.
        mentions: whether the module's code may look for an option of this name. Options that it doesn't look for only
            travel along.
        apart: options that are part of the signature though only other people's functions read them, since what these
            return depends on them.
        taken_in: knows which other people's functions are recorded with the model's code. None: none is.
        seen: whether the caller looks at the arguments' lists and dicts, except the options, again after the call.
    """
    args, kwargs = call.args, call.kwargs
    place = options_place(args, kwargs)
    if place is None:
        return _steering(args, kwargs, None, {}, dict, None, seen)
    options: Mapping[str, Any] = args[place] if isinstance(place, int) else kwargs[place]
    around = Surroundings(options, call.module)
    steers: dict[str, Any] = {}
    # the options that are, or contain, other people's functions
    tables = [key for key, value in options.items() if _is_table(key, value, mentions)]
    inside = _taken_in(args, around, tables, taken_in) if taken_in is not None else TakenInPaths()
    for key, value in options.items():
        if key in tables:
            if value or key not in _TABLES:
                steers[key] = repr(outline(value))
        elif key in apart and key not in inside.words:
            steers[key] = repr(value)
        elif key in inside.words or (
            inside.paths and key in _TRAVELLING and isinstance(value, (bool, int, float, str))
        ):
            steers[key] = value
        elif (key not in _TRAVELLING or key in PROMPTS) and isinstance(key, str) and mentions(key):
            steers[key] = value
    if not any(options[key] for key in tables):  # only such functions may copy all options, whatever these are
        around.key = None
    elif inside.paths:
        around.key = (around.key, inside.paths)
    around.unread = frozenset(
        key for key in options if isinstance(key, str) and key not in steers and key not in _TRAVELLING
    )

    def travelling() -> dict[str, Any]:
        traced = Traced(around)
        made = {}
        for key, value in options.items():
            if key in tables:
                made[key] = traced.table(value, (key,))
            elif key in _TRAVELLING and (key not in steers or key in apart - inside.words):
                made[key] = _travelling(traced, key, value)
            elif key not in steers:
                made[key] = traced.unread((key,))
        return made

    def finish() -> Any:
        given, named = _with(args, kwargs, place, {key: again(options[key], (key,), around) for key in tables})
        return call.original(*given, **named)

    around.finish = finish
    return _steering(args, kwargs, place, snapshot(steers), travelling, around, seen)


def _is_table(key: Any, value: Any, mentions: Callable[[str], bool]) -> bool:
    """Whether an option is, or contains, other people's functions that the model may call, as Forge's modifiers do."""
    if key in _TABLES or key in _TRAVELLING:
        return key in _TABLES
    return _is_function(value) or (isinstance(key, str) and _holds_functions(value) and mentions(key))


def _taken_in(args: tuple[Any, ...], around: Surroundings, tables: list[str], taken_in: TakenIn) -> TakenInPaths:
    """Which of the call's functions are recorded with the model's code."""
    around.taken_in = taken_in
    for key in tables:
        around.functions.update(functions_in(around.options[key], (key,)))
    if not around.functions:
        return TakenInPaths()
    device = next((arg.device for arg in args if isinstance(arg, torch.Tensor)), None)
    inside = taken_in.admitted(around.functions, around.options, device, PROMPTS)
    around.inside_paths = inside.paths
    around.find_placed = partial(
        taken_in.placed, {path: around.functions[path] for path in around.functions if path in inside.paths}, device
    )
    around.placed = around.find_placed()
    return inside


def _is_function(value: Any) -> bool:
    return callable(value) and not isinstance(value, type)


def _holds_functions(value: Any, depth: int = 0) -> bool:
    """Whether there are functions in a container."""
    if depth == _DEEPEST or not isinstance(value, (list, tuple, dict)):
        return False
    return any(
        _is_function(item) or _holds_functions(item, depth + 1)
        for item in (value.values() if isinstance(value, dict) else value)
    )


def _with(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], place: int | str, tables: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call's arguments with some of its options replaced by ``tables``."""
    if isinstance(place, int):
        return (*args[:place], {**args[place], **tables}, *args[place + 1 :]), dict(kwargs)
    return args, {**kwargs, place: {**kwargs[place], **tables}}


def _steering(
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    place: int | str | None,
    steers: dict[str, Any],
    travelling: Callable[[], dict[str, Any]],
    around: Surroundings | None,
    seen: bool,
) -> Steering:
    held, handed_back = HeldObjects(), HandedBack() if seen else None
    copy = snapshot if handed_back is None else handed_back.copy
    given = tuple([steers if index == place else copy(held.opened(each)) for index, each in enumerate(args)])
    named = {name: steers if name == place else copy(held.opened(each)) for name, each in kwargs.items()}
    return Steering(given, named, place, travelling, around, held or None, handed_back)


def _travelling(traced: Traced, key: str, value: Any) -> Any:
    """An option that only travels along, in a form that can't be read unnoticed: see :data:`_TRAVELLING`."""
    if type(value) is list:
        return traced.unread((key,))
    return value if value is None or isinstance(value, (bool, int, float, str)) else traced.handed(value, (key,))


def options_place(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int | str | None:
    """Where the transformer options are among a call's arguments: models take them by name or at a position of their
    own.
    """
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
