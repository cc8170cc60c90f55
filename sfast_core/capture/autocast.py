"""What autocast does to a call of a torch function, so that a graph can say it and run without autocast.

Which operators autocast casts, and to what, is a list inside PyTorch that differs by device and by version; and a
function in Python (``F.group_norm``, ``einsum``) is made of operators, some listed, some not. So nothing is listed
here. The function is run on fake tensors under the caller's autocast, and again without it on fake tensors whose dtypes
are those of arguments that were cast beforehand. Where both runs meet the same operators with the same dtypes, casts of
the arguments are all that autocast does.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from .errors import CaptureError
from .fake_tensors import KINDS, Run, Step, autocast_switched, leaves, mapped
from .signature import arguments_key, autocast_state


@contextmanager
def autocast_off() -> Iterator[None]:
    """Nothing is cast in here: a graph's casts are its own."""
    with autocast_switched([kind for kind, _ in autocast_state()], False):
        yield


class Treatment(NamedTuple):
    """Casts of a call's arguments; as it is here, none.

    Attributes:
        dtypes: what floating tensors are cast to, by device type.
        keyword: the ``dtype=`` that the function gets.
    """

    dtypes: tuple[tuple[str, torch.dtype], ...] = ()
    keyword: torch.dtype | None = None

    def cast(self, dtype: torch.dtype, device: torch.device) -> torch.dtype:
        """The dtype that a tensor argument is cast to, or its own. Autocast leaves float64 alone."""
        wanted = dict(self.dtypes).get(device.type)
        return dtype if wanted is None or not dtype.is_floating_point or dtype == torch.float64 else wanted

    def keywords(self) -> dict[str, torch.dtype]:
        """The keyword arguments that the function gets besides its own."""
        return {} if self.keyword is None else {"dtype": self.keyword}


NO_TREATMENT = Treatment()


@dataclass(frozen=True)
class Apart:
    """A call whose inside is cast: the operators that it is made of, casts among them, and what it returns."""

    steps: tuple[Step, ...]
    result: Any


class Autocast:
    """Knows what autocast, as it is at each call, does to that call. Calls that are alike are tried once.

    Attributes:
        computed_in: the dtypes that autocast was to compute in at the calls so far.
    """

    def __init__(self) -> None:
        self.computed_in: set[torch.dtype] = set()
        self._known: dict[Hashable, Treatment | Apart | str] = {}

    def treatment(
        self, func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> Treatment | Apart:
        """What autocast does to a call.

        Args:
            func: a torch function.
            name: what to call it.
            args, kwargs: its arguments.
            result: what it returned for them just now.

        Raises:
            CaptureError: it isn't known.
        """
        if not torch._C._is_any_autocast_enabled():
            return NO_TREATMENT
        on = {
            x.device.type
            for x in leaves((args, kwargs), torch.Tensor)
            if x.is_floating_point() and _enabled(x.device.type)
        }
        if not on:
            return NO_TREATMENT
        if unknown := on - KINDS:
            raise CaptureError(f"autocast is on for {unknown.pop()}")
        self.computed_in.update(map(torch.get_autocast_dtype, on))
        try:
            key: Hashable = (func, arguments_key(args, kwargs))
            found = self._known.get(key)
        except (CaptureError, TypeError):  # an argument that has no key, a slice say
            key = found = None
        if found is None:
            found = _find(func, name, args, kwargs, result, sorted(on))
            if key is not None:
                self._known[key] = found
        if isinstance(found, str):
            raise CaptureError(found)
        return found


def _enabled(kind: str) -> bool:
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def _find(
    func: Callable[..., Any], name: str, args: Any, kwargs: Mapping[str, Any], result: Any, on: Sequence[str]
) -> Treatment | Apart | str:
    """What autocast does, or why it isn't known."""
    try:
        real = _run(func, args, kwargs, result, on, Treatment())
    except Exception as error:
        return f"what autocast does to {name} can't be observed: {type(error).__name__}: {str(error)[:200]}"
    if real.dtypes != [x.dtype for x in leaves(result, torch.Tensor)]:
        return f"autocast does more to {name} than can be observed"
    with autocast_off():
        for treatment in _treatments(on, kwargs):
            try:
                tried = _run(func, args, kwargs, result, on, treatment)
            except Exception:  # dtypes that don't go together, a function without dtype=
                continue
            if tried.met == real.met and tried.dtypes == real.dtypes:
                if real.opaque and not real.random and not _gives(result, func, args, kwargs, treatment):
                    return f"autocast does more to {name} than can be observed"
                return treatment
    if (
        real.opaque
        or real.random
        or any(step.op._schema.is_mutable or leaves((step.args, step.kwargs), torch.Tensor) for step in real.steps)
    ):
        return f"autocast casts inside {name}"
    return Apart(tuple(real.steps), real.result)


def _treatments(on: Sequence[str], kwargs: Mapping[str, Any]) -> Iterator[Treatment]:
    """All casts of arguments that autocast knows.

    Its "widest" is one of them: to float32 where an argument is, else none.
    """
    yield Treatment()
    yield Treatment(tuple((kind, torch.get_autocast_dtype(kind)) for kind in on))
    yield Treatment(tuple((kind, torch.float32) for kind in on))
    if kwargs.get("dtype") is None:
        yield Treatment(keyword=torch.float32)


def _run(
    func: Callable[..., Any], args: Any, kwargs: Mapping[str, Any], result: Any, on: Sequence[str], treatment: Treatment
) -> Run:
    """Run a function on fake tensors of its arguments, treated beforehand.

    Most functions are one operator, and what that returns is known: the call's result. Only where a function goes on
    with it, shapes have to be worked out by meta kernels. Many are written in Python, and the first use of one imports
    all of ``torch._dynamo``: seconds.
    """
    for known in (result, None):
        run = Run(on, known)
        try:
            if run(func, args, {**kwargs, **treatment.keywords()}, lambda x: treatment.cast(x.dtype, x.device)):
                break
        except Exception:
            if not run.guessed:
                raise
    return run


def _gives(result: Any, func: Callable[..., Any], args: Any, kwargs: Mapping[str, Any], treatment: Treatment) -> bool:
    """Whether the function gives this very result for its arguments, treated beforehand.

    It is run once more, for its values.
    """
    args, kwargs = mapped(
        lambda x: x.to(treatment.cast(x.dtype, x.device)) if isinstance(x, torch.Tensor) else x, (args, kwargs)
    )
    mine, theirs = (
        leaves(value, torch.Tensor) for value in (func(*args, **{**kwargs, **treatment.keywords()}), result)
    )
    return all(
        a.dtype == b.dtype and a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())
        for a, b in zip(mine, theirs, strict=True)
    )
