"""Calls of a host's smaller models through their engines: a VAE's halves, text encoders, ControlNets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..capture import CaptureError, Signature
from ..config import CompileConfig
from ..engine import Engine, Forward
from ..reporting.reasons.calls import WRITES_ARGUMENTS
from .admission import Admission

Arguments = tuple[Any, ...]


@dataclass(frozen=True)
class Padded:
    """A call's arguments padded to another size.

    Attributes:
        kwargs: all of them, by name.
        cut: cuts a result to the size that was asked for; one that has that size stays.
        written: the names of tensors that the part writes to and nobody reads afterwards.
    """

    kwargs: dict[str, Any]
    cut: Callable[[Any], Any]
    written: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Kind:
    """What differs between kinds of parts.

    Attributes:
        why_not: why a call with these arguments runs as it was, or None.
        why_no_graph: why a call with these arguments is fused but not captured, or None.
        few_shapes: whether shapes may never come again, so that not each is worth a trace
        (:class:`.admission.Admission`).
        writes_input: whether the forward writes to its first argument, which nobody reads afterwards.
        padded: pads a call to a size that others have, too, or returns None.
    """

    why_not: Callable[[Arguments], str | None] = lambda args: None
    why_no_graph: Callable[[Arguments], str | None] = lambda args: None
    few_shapes: bool = False
    writes_input: bool = False
    padded: Callable[[torch.nn.Module, Arguments, dict[str, Any]], Padded | None] = lambda module, args, kwargs: None


class PartCalls:
    """The calls of one part, through its engine.

    Args:
        engine: the part's.
        kind: of the part.
        config: the user's; the engine's is changed from call to call.
        keeps_state: whether lists and dicts that the part changes are taken care of.
    """

    def __init__(self, engine: Engine, kind: Kind, config: CompileConfig, keeps_state: bool = False) -> None:
        self._keeps_state = keeps_state
        self._engine = engine
        self._kind = kind
        self._config = config
        self._admission = Admission()

    def __call__(
        self,
        module: torch.nn.Module,
        traced: Forward,
        args: Arguments,
        kwargs: dict[str, Any],
        eager: Callable[[], Any],
    ) -> Any:
        """What ``traced(*args, **kwargs)`` returns, computed in the fastest way that is known to be right.

        Args:
            module: the part.
            traced: its forward as it was.
            args: the call's arguments.
            kwargs: its keyword arguments.
            eager: runs the call as the host would have.

        Raises:
            CaptureError: this call is to run as it was; the message says why.
        """
        if reason := self._kind.why_not(args):
            raise CaptureError(reason)
        if not self._keeps_state and any(isinstance(value, (list, dict)) for value in (*args, *kwargs.values())):
            raise CaptureError(WRITES_ARGUMENTS().also("it is given a container that it may write to"))
        if self._kind.few_shapes and (reason := self._admission.reason(Signature(args, kwargs).key)):
            raise CaptureError(reason)
        engine = self._engine
        no_graph = self._kind.why_no_graph(args) if self._config.cuda_graphs else None
        # Two threads may interfere here. At worst a graph is captured that need not be, or at a later call.
        engine.config = replace(engine.config, cuda_graphs=self._config.cuda_graphs and no_graph is None)
        signatures = engine.report.signatures
        last = signatures[-1:]
        result = engine.call(module, _keeping(traced) if self._kind.writes_input else traced, args, kwargs, eager)
        if no_graph and signatures[-1:] != last:  # this call has added a signature
            signatures[-1].not_captured_because = no_graph
        return result


def _keeping(forward: Forward) -> Forward:
    """``forward`` with a copy of its first argument: a trace can't write to its input."""

    def kept(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return forward(x.clone(), *args, **kwargs)

    return kept
