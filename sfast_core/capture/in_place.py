"""Records operations that change a tensor in place as functions, and notices what they do to its views."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import torch

from .arrays import Arrays
from .changing import Changing, changed_arguments, functional_sibling
from .errors import CaptureError
from .functional import (
    cast_like,
    element,
    functional_form,
    identity,
    is_in_place,
    keeps_dtype,
    mutates,
    overwriting_form,
)
from .nodes import call_function
from .regions import Region, apart


class InPlace(Arrays):
    """Bookkeeping of tensors that change: the target of an operation gets the node of what it holds from then on."""

    def _record_in_place(self, func: Any, name: str, call: tuple[Any, Any], args: tuple[Any, ...]) -> None:
        target = args[0] if args and isinstance(args[0], torch.Tensor) else None
        overwriting = overwriting_form(name, target, call[0][1:]) if target is not None else None
        form = functional_form(name) if is_in_place(name) else func  # with inplace=True: the same function without it
        if target is None or (form is None and overwriting is None):
            raise CaptureError(f"{name} changes a tensor in place in a way that has no functional form")
        if name not in ("requires_grad_", "detach_"):
            self._allow(target, name)
        elif target.requires_grad and not self.computes(target):
            raise CaptureError("a tensor that was there before the call is to want gradients from now on")
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
        self._nodes[target] = self._value(node, target)
        if form is not identity:
            value = args[2] if name == "__setitem__" else None
            self._written_through(target, node, [other for other in self._live_aliases(target) if other is not value])

    def _record_out(self, func: Any, name: str, call: tuple[Any, Any], target: torch.Tensor) -> None:
        """A function that puts its result into a tensor: as without, and then the tensor is that."""
        if target not in self._nodes:
            raise CaptureError(f"{name} writes to an input or a weight by out=")
        self._allow(target, name)
        if any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):
            raise CaptureError(f"{name} writes to out= under autocast")
        try:
            computed = func(*_metas(tuple(call[0])), **_metas(call[1]))
        except Exception as error:
            raise CaptureError(f"{name} writes to out= and can't be asked what: {error}") from None
        if not isinstance(computed, torch.Tensor) or computed.shape != target.shape:
            raise CaptureError(f"{name} writes to an out= of another shape")
        node = call_function(self.graph, func, tuple(call[0]), call[1])
        if computed.dtype != target.dtype:
            node.meta["val"], node.meta["device"] = computed, target.device
            node = call_function(self.graph, cast_like, (node, target.dtype))
        self._nodes[target] = self._value(node, target)
        self._written_through(target, node, list(self._live_aliases(target)))

    def _record_changing(
        self, func: Any, name: str, call: tuple[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """An operator of a library's that changes arguments: a function that returns what it leaves in them."""
        changed = changed_arguments(func, len(args), kwargs)
        if changed is None or result is not None:
            raise CaptureError(f"the operator {name} changes its arguments and returns something, or has several forms")
        if any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):
            raise CaptureError(f"the operator {name} changes its arguments under autocast")
        tensors = [args[where] if isinstance(where, int) else kwargs[where] for where in changed]
        if any(not isinstance(tensor, torch.Tensor) for tensor in tensors):
            raise CaptureError(f"the operator {name} changes an argument that is no tensor")
        for tensor in tensors:
            self._allow(tensor, name)
        if len({self._storage(tensor) for tensor in tensors}) < len(tensors) and not all(
            apart(Region.of(one), Region.of(other)) for one, other in combinations(tensors, 2)
        ):
            raise CaptureError(f"the operator {name} changes two tensors that share elements")
        function = functional_sibling(func, len(tensors))
        node = call_function(self.graph, function or Changing(func, changed), tuple(call[0]), call[1])
        parts = (
            [node]
            if function is not None and len(tensors) == 1
            else [call_function(self.graph, element, (node, i)) for i in range(len(tensors))]
        )
        for part, tensor in zip(parts, tensors, strict=True):
            self._nodes[tensor] = self._value(part, tensor)
        for part, tensor in zip(parts, tensors, strict=True):
            others = [other for other in self._live_aliases(tensor) if all(other is not one for one in tensors)]
            self._written_through(tensor, part, others)

    def _before(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A call comes that may write to inputs: the program is proved with what is in them now."""
        if kwargs.get("out") is not None:
            targets = (kwargs["out"],)
        elif is_in_place(name) or kwargs.get("inplace") is True:
            targets = args[:1]
        elif mutates(func):
            targets = tuple(
                args[where] if isinstance(where, int) else kwargs[where]
                for where in changed_arguments(func, len(args), kwargs) or ()
            )
        else:
            return
        for target in targets:
            if isinstance(target, torch.Tensor) and (found := self._input_in(target)) is not None:
                self.input_writes.keep(*found)

    def _allow(self, target: torch.Tensor, name: str) -> None:
        """A write to ``target`` is recorded.

        Raises:
            CaptureError: it would be seen outside of the call, and not only in an input.
        """
        if not self._is_foreign(target):
            return
        found = self._input_in(target)
        if found is None or not self.input_writes.add(found[0]):
            raise CaptureError(f"{name} writes to an input or a weight in place")
        self._unchanged.renew(found[1])

    def _settle(self, target: torch.Tensor, index: Any, value: Any) -> None:
        """``x[i] += y`` updates the view x[i] and then sets x[i] to it: that makes x current without the view's own
        write.
        """
        writes = self._writes.get(target)
        culprit = writes[-1].source() if writes else None
        if writes and culprit is not None and culprit is value:
            with torch._C.DisableTorchFunction():
                view = target[index]
            if view.data_ptr() == value.data_ptr() and Region.of(view) == Region.of(value):
                writes.pop()


def _metas(value: Any) -> Any:
    return torch.fx.node.map_arg(value, lambda node: node.meta["val"])
