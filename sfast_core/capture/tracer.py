"""Records calls of one module, each with what tells later whether its trace, or the reason why there is none, still holds."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Protocol

import torch

from .bystanders import BystanderGuard
from .errors import CaptureError
from .guard import StructureGuard
from .kept_tensors import kept_tensors, replaced
from .signature import Signature
from .trace import LeafScope, Trace, Untraceable, record


class Guard(Protocol):
    """What steered one recorded call besides its arguments."""

    @property
    def hooked(self) -> str | None:
        """Why a trace of that call can't be trusted, or None."""

    def changed(self, module: torch.nn.Module) -> str | None:
        """What is different for a call of ``module`` now, in words, or None."""


class Tracer:
    """Records calls of one module. It holds neither the module nor any trace.

    Args:
        leaf_scope: a host's context around recorded calls, see :func:`record`.
    """

    def __init__(self, leaf_scope: LeafScope | None = None) -> None:
        self._leaf_scope = leaf_scope
        self._changing: set[Hashable] = set()  # signatures whose recorded call changed the module

    def record(
        self, module: torch.nn.Module, signature: Signature, device: torch.device, call: Callable[[], Any]
    ) -> tuple[Any, Trace | Untraceable, Guard | None]:
        """Run ``call()`` once and record it. As :func:`record`, and a call that changes its module leaves no trace.

        Returns:
            the call's own result, its trace or why there is none, and how long that holds: until the guard says that something changed,
            or, where there is no guard, for good.

        Raises:
            CaptureError: a torch function failed, perhaps only because it was recorded; its error is the cause, its ``guard`` this one.
            Exception: what the module's own code raised.
        """
        try:
            guard = StructureGuard(module)
            again = BystanderGuard(module) if signature.key in self._changing else None
        except Exception as error:  # a module of TorchScript's has other tables
            raise CaptureError(f"what steers it can't be read: {type(error).__name__}: {error}") from error
        kept = kept_tensors(module)
        try:
            result, trace = record(call, signature.tensors, module, device, self._leaf_scope)
        except CaptureError as error:
            error.guard = guard
            raise
        left_behind = replaced(kept, kept_tensors(module))
        change = guard.changed(module) or (f"{left_behind} is another tensor" if left_behind else None)
        if change is None:
            return result, trace, guard
        # A counter, a cache, a kept result: a replay would not change it again.
        if again is not None:
            again.settle()
        self._changing.add(signature.key)
        return result, Untraceable(f"the call itself changes the module: {change}", passing=again is None), again
