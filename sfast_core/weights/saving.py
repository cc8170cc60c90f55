"""Has ``state_dict()`` return convolution weights in their own strides, as the module's very tensors.

Copies would do for saving (safetensors takes contiguous tensors only). But whoever writes to what ``state_dict()``
returned means to write to the module (averages of weights do), and a host that only asks for names and sizes would have
the weights twice on its GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .memory import Strides, lay
from .unwatched import unwatched

LayPlain = Callable[[torch.nn.Module, dict[str, Strides]], None]


class PlainWhenSaved:
    """A ``state_dict`` pre-hook that gives a module's tensors their own strides back before they are listed. A copied
    or pickled module gets a hook of its own.

    Args:
        lay_plain: gives a module's tensors, by name, these strides.
    """

    def __init__(self, lay_plain: LayPlain) -> None:
        self._lay_plain = lay_plain
        self.strides: dict[str, Strides] = {}

    def __call__(self, module: torch.nn.Module, prefix: str, keep_vars: bool) -> None:
        self._lay_plain(module, self.strides)

    def __deepcopy__(self, memo: Any) -> PlainWhenSaved:
        return _of_copy(dict(self.strides))

    def __reduce__(self) -> Any:
        return _of_copy, (dict(self.strides),)


def tensor_at(module: torch.nn.Module, name: str) -> torch.Tensor | None:
    """The tensor ``module.name``, without running a property's code; None where there is none."""
    for table in (module._parameters, module._buffers, module.__dict__):
        if isinstance(found := table.get(name), torch.Tensor):
            return found
    return None


@unwatched()
def _lay_plain(module: torch.nn.Module, strides: dict[str, Strides]) -> None:
    for name, plain in strides.items():
        tensor = tensor_at(module, name)
        if tensor is not None and tensor.dim() == len(plain):
            lay(tensor, plain)


def _of_copy(strides: dict[str, Strides]) -> PlainWhenSaved:
    hook = PlainWhenSaved(_lay_plain)
    hook.strides = strides
    return hook
