"""What a torch function does with a tensor of a class of its own, in terms of that tensor's parts.

The class computes in Python, behind the dispatcher (``__torch_dispatch__``): there a quantised weight's product becomes
operators on its numbers and scales. A function mode sees the call with the whole tensors alone. So for the length of
such a call a second mode stands in front of the class and lets the recorder see what it does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import MethodDescriptorType
from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..weights.part import has_parts, is_plain
from .guards.frames import Pausing, Unwatched

aten = torch.ops.aten
#: How the operators are written elsewhere that torch takes a function apart into around a class's own.
SPELLINGS: dict[Any, Callable[..., torch.Tensor]] = {
    aten.view.default: torch.Tensor.reshape,
    aten._unsafe_view.default: torch.Tensor.reshape,
    aten.linear.default: torch.nn.functional.linear,
    aten.mm.default: torch.mm,
    aten.addmm.default: torch.addmm,
    aten.bmm.default: torch.bmm,
    aten.matmul.default: torch.matmul,
    aten.add.Tensor: torch.add,
    aten.mul.Tensor: torch.mul,
    aten.silu.default: torch.nn.functional.silu,
    aten.gelu.default: torch.nn.functional.gelu,
}


def spelled(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """One of PyTorch's own operators as the function that models call, which a recorder knows by its name, and the
    arguments by name for it.

    Where a tensor's own method has the name it is that, which takes what the operator takes. Others stay what they are:
    an operator that has several forms becomes the one that these arguments choose.
    """
    if isinstance(operator, torch._ops.OpOverloadPacket):
        operator = _chosen(operator, args, kwargs)
    if not isinstance(operator, torch._ops.OpOverload) or operator.namespace != "aten":
        return operator, kwargs
    if operator is aten._to_copy.default and set(kwargs) <= {"dtype", "non_blocking"}:
        return torch.Tensor.to, {**kwargs, "copy": True}
    if operator in SPELLINGS:
        return SPELLINGS[operator], kwargs
    first = operator._schema.arguments[0] if operator._schema.arguments else None
    method = getattr(torch.Tensor, operator._schema.name.rpartition("::")[2], None)
    fits = (
        first is not None
        and first.name == "self"
        and str(first.type) == "Tensor"
        and isinstance(method, MethodDescriptorType)
    )
    return (method if fits else operator), kwargs


def _chosen(packet: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The form of an operator of PyTorch's own that is called with these arguments; the operator itself where that
    can't be told.
    """
    choose = getattr(torch._C, "_jit_resolve_packet", None)
    if choose is None or not packet._qualified_op_name.startswith("aten::"):
        return packet
    try:
        return getattr(packet, choose(packet._qualified_op_name, *args, **kwargs) or "default")
    except (RuntimeError, AttributeError):
        return packet


def wrapped(value: Any) -> Iterator[torch.Tensor]:
    """The tensors with parts among a call's arguments."""
    if isinstance(value, torch.Tensor):
        if not is_plain(value) and has_parts(value):
            yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from wrapped(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from wrapped(item)


class Recording(Protocol):
    """The recorder, as far as it is needed here: a context in which torch functions are recorded."""

    watch: Pausing

    @property
    def writes_down(self) -> bool: ...

    def __enter__(self) -> Any: ...

    def __exit__(self, *raised: Any) -> Any: ...


class Inside(TorchDispatchMode):
    """Stands in front of the classes of tensors with parts.

    What the classes do is watched. What torch and this package do around that isn't: half of all that Python told of in
    a recording of int8 layers.

    Args:
        recorder: of the call, whose watch is paused when this is entered, and again behind it.
    """

    def __init__(self, recorder: Recording) -> None:
        super().__init__()
        self._recorder = recorder

    def __enter__(self) -> Inside:
        super().__enter__()
        self._recorder.watch.resume()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._recorder.watch.pause()
        super().__exit__(*raised)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not self._recorder.writes_down:
            return self._dispatched(func, types, args, kwargs or {}, Unwatched())
        self._recorder.watch.pause()
        try:
            return self._dispatched(func, types, args, kwargs or {}, self._recorder.watch)
        finally:
            self._recorder.watch.resume()

    def _dispatched(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any], watch: Pausing) -> Any:
        whole = next(wrapped((args, kwargs)), None)
        with self._recorder:
            watch.resume()
            try:
                if whole is not None:
                    return type(whole).__torch_dispatch__(func, types, args, kwargs)
                return func(*args, **kwargs)
            finally:
                watch.pause()
