"""Calls of a forward that keeps a state in its arguments: a causal model's cache, a video decoder's last frames.

For the engine such a forward is a function of tensors: it is given what is in the caches and returns what is in them
afterwards. The caller's own objects are then brought to that state, and stay the objects that they are; tensors that
the forward writes to in place are written to in place.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..capture import CaptureError, alone, failed_here, recorder_here, recording
from ..engine import Engine, Forward
from ..reporting.reason import reason_of
from ..reporting.reasons.calls import GROWS
from .opening import Constants, Opening, Standing, size_of
from .recipe import Making, Outcome

Run = Callable[[Forward, tuple[Any, ...], dict[str, Any]], Any]
_NAMES = ("cache", "past_key_values")


def has_state(forward: Callable[..., Any]) -> bool:
    """Whether a forward takes a cache, by the names of its parameters."""
    try:
        names = inspect.signature(forward).parameters
    except (TypeError, ValueError):
        return False
    return any(part in name for name in names for part in _NAMES)


class StatefulCalls:
    """The calls of one module whose forward takes caches."""

    def __init__(self) -> None:
        self._constants = Constants()
        self._growing: dict[frozenset[type], frozenset[str]] = {}  # by the classes of a call's caches

    def call(
        self, engine: Engine, module: torch.nn.Module, original: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """What ``original(*args, **kwargs)`` returns, with the caches brought to the state in which it leaves them."""

        def run(forward: Forward, opened: tuple[Any, ...], named: dict[str, Any]) -> Any:
            return engine.call(module, forward, opened, named, lambda: forward(*opened, **named), seen=True)

        return self.through(engine, original, args, kwargs, run, module)

    def through(
        self,
        engine: Engine,
        original: Forward,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        run: Run,
        module: torch.nn.Module | None = None,
    ) -> Any:
        """The same, where ``run`` calls the engine: it gets a forward without state, and the arguments for it.

        ``module``: that may keep what it is given.
        """
        opening = Opening(self._constants)
        try:
            opened = tuple([opening.of(arg, f"args[{index}]") for index, arg in enumerate(args)])
            named = {name: opening.of(arg, f"kwargs[{name!r}]") for name, arg in kwargs.items()}
            self._refuse_growing(opening)
            opening.refuse_overlaps()
        except CaptureError as error:
            return engine.run_eager(reason_of(error), lambda: original(*args, **kwargs))
        outcome = run(_Forward(original, self._constants, args, kwargs, opening, module), opened, named)
        if isinstance(outcome, _Done):
            return outcome.result
        number, tensors = outcome
        left: Outcome = self._constants[number]
        if left.grows:
            self._growing[opening.caches] = left.grows
        return left.apply(Making(tensors, opening.objects, opening.given))

    def _refuse_growing(self, opening: Opening) -> None:
        """A cache that grows with each call has another shape in each, which none has that comes after it.

        An empty one is as any other.
        """
        caches = opening.caches
        names = sorted(self._growing.get(caches, ()))
        for each in opening.objects if names else ():
            if type(each) in caches and (
                grown := next((name for name in names if size_of(vars(each).get(name))), None)
            ):
                raise CaptureError(GROWS(names=grown, kind=type(each).__name__))


class _Done:
    """What the original forward returned, which has changed the caches itself."""

    def __init__(self, result: Any) -> None:
        self.result = result


class _Forward:
    """A forward as a function of what its caches hold. It returns the number of an :class:`Outcome` and its tensors.

    Outside of a recording it is the call itself, with the caller's own arguments. So is a recorded call that can't be
    described, or raises: it has run once, and the caller's objects are brought to where it has left its own.
    """

    def __init__(
        self,
        original: Forward,
        constants: Constants,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        opening: Opening,
        module: torch.nn.Module | None,
    ) -> None:
        self._original, self._module = original, module
        self._opening = opening
        self._constants = constants
        self._args = args
        self._kwargs = kwargs

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not recording():
            return _Done(self._original(*self._args, **self._kwargs))
        standing = Standing(self._constants)
        given, named = standing.of(args), {name: standing.of(arg) for name, arg in kwargs.items()}
        try:
            result = self._original(*given, **named)
        except Exception as error:
            if not failed_here(error):  # else the call is made once more
                standing.leave(None, self._opening)
            raise
        try:
            if self._module is not None and standing.hand_over(self._module, self._opening):
                raise CaptureError("the module keeps a cache that it is given")
            outcome, tensors = standing.outcome(result)
        except CaptureError as error:
            if (recorder := recorder_here()) is not None and recorder.read_set is not None:
                recorder.read_set.refuse(reason_of(error))
            return _Done(standing.leave(result, self._opening))
        return self._constants.number(outcome), tensors

    def states(self, result: Any, inputs: Sequence[torch.Tensor]) -> dict[int, int]:
        """Result index → input index, for tensors of a recorded call that are to be written into its inputs."""
        places = {id(tensor): index for index, tensor in enumerate(inputs)}
        outcome: Outcome = self._constants[result[0]]
        found = {computed: places.get(id(self._opening.given[number])) for computed, number in outcome.writes().items()}
        unshared = alone([place for place in found.values() if place is not None], inputs)
        return {computed: place for computed, place in found.items() if place in unshared}
