"""The parts of a VAE, of text encoders and of ControlNets that are compiled, and their compiled state."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ...capture import recording
from ...config import CompileConfig
from ...engine import Forward
from ...state import StatefulCalls
from ..hook import HookedCall
from ..options import Steering, options_place
from ..parts import Kind, PartCalls
from .state import HookedState, engine_of


@dataclass(frozen=True)
class Part:
    """One module that is compiled, or not.

    Attributes:
        module: whose forward it is.
        name: for the report.
        owner: what the host's patcher calls its model: ``module``, or what it is a part of.
        kind: its particularities.
        patcher: the host's, or None where it has none.
        left_alone: why it isn't compiled at all, or None. Then only calls are counted.
    """

    module: torch.nn.Module
    name: str
    owner: torch.nn.Module
    kind: Kind = field(default_factory=Kind)
    patcher: Any = None
    left_alone: str | None = None


class PartState(HookedState):
    """The compiled state of one part."""

    def __init__(self, part: Part, config: CompileConfig) -> None:
        dynamic = getattr(part.patcher, "is_dynamic", bool)()
        super().__init__(part.owner, engine_of(part.owner, part.name, config, dynamic), config)
        self._calls = PartCalls(self.engine, part.kind, config, keeps_state=True)
        self._stateful = StatefulCalls()
        self._kind = part.kind
        self._patcher_ref = weakref.ref(part.patcher) if part.patcher is not None else None

    def _patcher(self) -> Any:
        return self._patcher_ref() if self._patcher_ref is not None else None

    def _call(self, call: HookedCall) -> Any:
        padded = self._kind.padded(call.module, call.args, call.kwargs)
        if padded is None:
            return self._call_with_state(call)

        def forward(*longer: Any, **named: Any) -> Any:
            if not recording():
                return call.eager()
            return call.original(
                *longer, **{name: value.clone() if name in padded.written else value for name, value in named.items()}
            )

        return padded.cut(self._call_with_state(replace(call, original=forward, args=(), kwargs=padded.kwargs)))

    def _call_with_state(self, call: HookedCall) -> Any:
        """A video's frames, which are kept in lists from call to call, are part of what goes in and comes out."""
        through = super()._call
        containers = any(type(value) in (list, dict) for value in (*call.args, *call.kwargs.values()))
        # a ControlNet's options are looked at by themselves
        if not containers or options_place(call.args, call.kwargs) is not None:
            return through(call)

        def run(forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return through(replace(call, original=forward, args=args, kwargs=kwargs))

        return self._stateful.through(self.engine, call.original, call.args, call.kwargs, run)

    def _compute(self, model: torch.nn.Module, traced: Forward, steering: Steering, eager: Callable[[], Any]) -> Any:
        return self._calls(model, traced, steering.args, steering.kwargs, eager)
