"""What a torch function does with a tensor of a class of its own, in terms of that tensor's parts.

The class computes in Python, behind the dispatcher (``__torch_dispatch__``): there a quantised weight's product becomes operators on its numbers
and scales. A function mode sees the call with the whole tensors alone. So for the length of such a call a second mode stands in front of the
class and lets the recorder see what it does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..weights.part import has_parts, is_plain

aten = torch.ops.aten
#: How the operators are written elsewhere that torch takes a function apart into around a class's own.
SPELLINGS: dict[Any, Callable[..., torch.Tensor]] = {
    aten.view.default: torch.Tensor.reshape,
    aten._unsafe_view.default: torch.Tensor.reshape,
    aten.reshape.default: torch.Tensor.reshape,
    aten.t.default: torch.Tensor.t,
    aten.expand.default: torch.Tensor.expand,
    aten.linear.default: torch.nn.functional.linear,
    aten.mm.default: torch.mm,
    aten.addmm.default: torch.addmm,
    aten.bmm.default: torch.bmm,
    aten.add.Tensor: torch.add,
}


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


class Inside(TorchDispatchMode):
    """Stands in front of the classes of tensors with parts.

    Args:
        recorded: a context in which torch functions are recorded.
    """

    def __init__(self, recorded: AbstractContextManager[Any]) -> None:
        super().__init__()
        self._recorded = recorded

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        whole = next(wrapped((args, kwargs)), None)
        with self._recorded:
            if whole is not None:
                return type(whole).__torch_dispatch__(func, types, args, kwargs)  # type: ignore[misc]
            return func(*args, **kwargs)
