"""The parts of a VAE, of text encoders and of ControlNets that are compiled, and their compiled state."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from ...config import CompileConfig
from ...engine import Forward
from ..options import Steering
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
        self._calls = PartCalls(self.engine, part.kind, config)
        self._patcher_ref = weakref.ref(part.patcher) if part.patcher is not None else None

    def _patcher(self) -> Any:
        return self._patcher_ref() if self._patcher_ref is not None else None

    def _compute(self, model: torch.nn.Module, traced: Forward, call: Steering, eager: Callable[[], Any]) -> Any:
        return self._calls(model, traced, call.args, call.kwargs, eager)
