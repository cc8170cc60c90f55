"""The parts of a VAE, of text encoders and of ControlNets that are compiled, and their compiled state."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ...capture import CaptureError, Signature
from ...config import CompileConfig
from ...engine import Forward
from .one_offs import OneOffs
from .state import HookedState, engine_of

Arguments = tuple[Any, ...]


@dataclass(frozen=True)
class Kind:
    """What is particular to a kind of part.

    Attributes:
        why_not: why a call with these arguments runs as it was, or None.
        why_no_graph: why a call with these arguments is fused but not captured, or None.
        few_shapes: whether it pays to look out for shapes that never come again (see :class:`.one_offs.OneOffs`).
        writes_input: whether its forward writes to its first argument, which nobody reads afterwards.
    """

    why_not: Callable[[Arguments], str | None] = lambda args: None
    why_no_graph: Callable[[Arguments], str | None] = lambda args: None
    few_shapes: bool = False
    writes_input: bool = False


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
        super().__init__(part.owner, engine_of(part.owner, part.module, part.name, config, dynamic), config)
        self._kind = part.kind
        self._one_offs = OneOffs()
        self._patcher_ref = weakref.ref(part.patcher) if part.patcher is not None else None

    def _patcher(self) -> Any:
        return self._patcher_ref() if self._patcher_ref is not None else None

    def _compute(self, model: torch.nn.Module, traced: Forward, args: Arguments, kwargs: dict[str, Any], eager: Callable[[], Any]) -> Any:
        if reason := self._kind.why_not(args):
            raise CaptureError(reason)
        if self._kind.few_shapes and (reason := self._one_offs.reason(Signature(args, kwargs).key)):
            raise CaptureError(reason)
        no_graph = self._kind.why_no_graph(args) if self.config.cuda_graphs else None
        # Two threads with calls of both sorts may mix this up: then one graph is captured too many, or later.
        self.engine.config = replace(self.engine.config, cuda_graphs=self.config.cuda_graphs and no_graph is None)
        signatures = self.engine.report.signatures
        last = signatures[-1:]
        result = self.engine.call(model, _keeping(traced) if self._kind.writes_input else traced, args, kwargs, eager)
        if no_graph and signatures[-1:] != last:  # this call made one
            signatures[-1].not_captured_because = no_graph
        return result


def _keeping(forward: Forward) -> Forward:
    """``forward``, which gets a copy of its first argument: a trace can't write to its input."""

    def kept(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return forward(x.clone(), *args, **kwargs)

    return kept
