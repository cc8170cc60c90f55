"""Records operations that change a tensor in place as functions, and notices what they do to its views."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from .bookkeeping import Bookkeeping
from .errors import CaptureError
from .functional import cast_like, functional_form, is_in_place, keeps_dtype, overwriting_form
from .nodes import call_function


class InPlace(Bookkeeping):
    """Bookkeeping of tensors that change: the target of an operation gets the node of what it holds from then on."""

    def _record_in_place(self, func: Any, name: str, call: tuple[Any, Any], args: tuple[Any, ...]) -> None:
        target = args[0] if args and isinstance(args[0], torch.Tensor) else None
        overwriting = overwriting_form(name, target, call[0][1:]) if target is not None else None
        form = functional_form(name) if is_in_place(name) else func  # with inplace=True: the same function without it
        if target is None or (form is None and overwriting is None):
            raise CaptureError(f"{name} changes a tensor in place in a way that has no functional form")
        if self._is_foreign(target) and name not in ("requires_grad_", "detach_"):
            raise CaptureError(f"{name} writes to an input or a weight in place")
        kwargs = {key: value for key, value in call[1].items() if key != "inplace"}
        if overwriting is not None:
            node = call_function(self.graph, *overwriting)
        else:
            assert form is not None
            node = call_function(self.graph, form, tuple(call[0]), kwargs)
            if not keeps_dtype(name, target, args[1:]):
                try:
                    computed = form(*_metas(call[0]), **_metas(kwargs))
                except Exception as error:
                    raise CaptureError(f"{name} has no functional form for these arguments: {error}") from None
                if computed.dtype != target.dtype:
                    node.meta["val"], node.meta["device"] = computed, target.device
                    node = call_function(self.graph, cast_like, (node, target.dtype))
        for other in self._live_aliases(target):
            if not (name == "__setitem__" and other is args[2]):
                self._stale[other] = weakref.ref(target)
        self._nodes[target] = self._value(node, target)

    def _settle(self, target: torch.Tensor, index: Any, value: Any) -> None:
        """``x[i] += y`` updates the view x[i] and then sets x[i] to it: that write makes x's node current again."""
        culprit = self._stale.get(target)
        if culprit is not None and culprit() is value and isinstance(value, torch.Tensor):
            with torch._C.DisableTorchFunction():
                view = target[index]
            if (view.data_ptr(), view.shape, view.stride()) == (value.data_ptr(), value.shape, value.stride()):
                del self._stale[target]


def _metas(value: Any) -> Any:
    return torch.fx.node.map_arg(value, lambda node: node.meta["val"])
