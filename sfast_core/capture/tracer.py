"""Traces of one module's calls, and whether they still hold."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch

from .guard import StructureGuard
from .kept_tensors import kept_tensors, replaced
from .signature import Signature
from .trace import LeafScope, Trace, Untraceable, record


class Tracer:
    """Records calls of one module, and watches whether the module is as its traces have found it.

    It doesn't hold the module.

    Args:
        leaf_scope: a host's context around recorded calls, see :func:`record`.
    """

    def __init__(self, leaf_scope: LeafScope | None = None) -> None:
        self._leaf_scope = leaf_scope
        self._guard: StructureGuard | None = None  # None: there is no trace that it would guard
        self._changing: set[Hashable] = set()  # signatures whose recorded call changed the module

    @property
    def hooked(self) -> str | None:
        """Why the traces of this module can't be trusted, or None."""
        return None if self._guard is None else self._guard.hooked

    def changed(self, module: torch.nn.Module) -> str | None:
        """What changed below ``module`` since its traces, in words; None where they hold, or where there are none."""
        if self._guard is None:
            return None
        return self._guard.changed() if self._guard.is_of(module) else "another module is in its place"

    def record(
        self, module: torch.nn.Module, signature: Signature, device: torch.device, call: Callable[[], Any]
    ) -> tuple[Any, Trace | Untraceable]:
        """Run ``call()`` once and record it. As :func:`record`, and a call that changes its module leaves no trace.

        Raises:
            CaptureError: a torch function failed, perhaps only because it was recorded; its error is the cause.
            Exception: what the module's own code raised.
        """
        guard = self._guard if self._guard is not None and self._guard.is_of(module) else StructureGuard(module)
        kept = kept_tensors(module)
        result, trace = record(call, signature.tensors, module, device, self._leaf_scope)
        left_behind = replaced(kept, kept_tensors(module))
        change = guard.changed() or (f"{left_behind} is another tensor" if left_behind else None)
        if change:  # a counter, a cache, a kept result: a replay would not change it again
            trace = Untraceable(f"the call itself changes the module: {change}", passing=signature.key not in self._changing)
            self._changing.add(signature.key)
        if not (isinstance(trace, Untraceable) and trace.passing):
            self._guard = guard if change is None else None
        return result, trace

    def forget(self) -> None:
        """There are no traces any more."""
        self._guard = None
