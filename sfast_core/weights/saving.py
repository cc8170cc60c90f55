"""``state_dict()`` of a module whose convolution weights lie channels_last: it gives them as they lay before, and still
the module's own.

Copies would do for a file (safetensors takes contiguous tensors alone), but whoever writes to what ``state_dict()``
returned means to write to the module (averages of weights do), and a host that asks for nothing but names and sizes
would have the weights twice on its GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .aside import aside
from .memory import Strides, lay

LayPlain = Callable[[torch.nn.Module, dict[str, Strides]], None]


class PlainWhenSaved:
    """A ``state_dict`` pre-hook: before a module's tensors are listed they get their own strides back.

    A copy of the module, or one that was pickled, has a hook of its own.

    Args:
        lay_plain: gives tensors of a module, by name, these strides.
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


@aside()
def _lay_plain(module: torch.nn.Module, strides: dict[str, Strides]) -> None:
    for name, plain in strides.items():
        tensor = tensor_at(module, name)
        if tensor is not None and tensor.dim() == len(plain):
            lay(tensor, plain)


def _of_copy(strides: dict[str, Strides]) -> PlainWhenSaved:
    hook = PlainWhenSaved(_lay_plain)
    hook.strides = strides
    return hook
