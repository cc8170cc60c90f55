"""What a forward asks of tensors besides values: whether gradients are wanted, say, or how a weight lies.

It steers Python code, and is asked again at each call.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch

from ..weights import WeightRef

#: By the names of a tensor's attributes and methods: what may be asked of a tensor that was there before the call.
QUESTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "requires_grad": lambda tensor: tensor.requires_grad,
    "is_leaf": lambda tensor: tensor.is_leaf,
    "retains_grad": lambda tensor: tensor.retains_grad,
    "grad": lambda tensor: tensor.grad is None,
    "grad_fn": lambda tensor: tensor.grad_fn is None,
    "_backward_hooks": lambda tensor: len(tensor._backward_hooks or ()),
    "_base": lambda tensor: tensor._base is None,
    "is_inference": torch.Tensor.is_inference,
    "is_shared": torch.Tensor.is_shared,
    "is_pinned": torch.Tensor.is_pinned,
    "storage_offset": torch.Tensor.storage_offset,
    "stride": torch.Tensor.stride,
    "is_contiguous": torch.Tensor.stride,
    "dim_order": torch.Tensor.stride,
}
#: What is another where a weight is laid out anew. Of an input the signature says it.
OF_LAYOUT = frozenset({"stride", "is_contiguous", "dim_order"})
LYING = OF_LAYOUT | {"storage_offset"}
#: What follows from these and isn't the same in a copy, or in what a program makes: a call that asks for it runs as it
#: was.
HIDDEN = frozenset(
    "_version _is_view _cdata data_ptr storage untyped_storage _typed_storage numpy __array__ __dlpack__".split()
)
ASKED = HIDDEN | QUESTIONS.keys()


class Telling(Protocol):
    """Something that a recorded call was told: its ``answer``, and ``now()`` the one at this call."""

    @property
    def name(self) -> str: ...

    @property
    def answer(self) -> Any: ...

    def now(self) -> Any: ...


@dataclass(frozen=True)
class Told:
    """What a weight, or a tensor from elsewhere, has told a call: ``of`` says which."""

    name: str
    of: WeightRef | weakref.ref[torch.Tensor]
    answer: Any

    def now(self) -> Any:
        """What the tensor tells now."""
        return told_by(self.name, self._tensor())

    def _tensor(self) -> Any:
        if isinstance(self.of, weakref.ref):
            return self.of()
        found = getattr(self.of.owner(), self.of.name, None)
        return found if found is None or self.of.part is None else self.of.part.in_any(found)


def told_by(name: str, tensor: Any) -> Any:
    """What ``tensor`` tells; None where it is none."""
    with torch._C.DisableTorchFunction():
        return QUESTIONS[name](tensor) if isinstance(tensor, torch.Tensor) else None


def tells(name: str, answer: Any) -> Callable[[torch.Tensor], bool]:
    """Whether a tensor tells what this name asks for."""
    return partial(_tells, name, answer)


def _tells(name: str, answer: Any, tensor: torch.Tensor) -> bool:
    return bool(told_by(name, tensor) == answer)
