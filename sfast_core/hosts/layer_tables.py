"""The tables in which containers of layers have these, as the same objects from call to call.

Where somebody takes a layer out of a container (``pop``, ``del``) PyTorch gives that another table. So does who puts
layers in for the length of a sampling, as AnimateDiff does; in ComfyUI for that of a call, where the parts of a prompt
have LoRAs of their own. A trace ends where a table that it has read is another, though the same layers are back in it.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

_CONTAINERS = (torch.nn.Sequential, torch.nn.ModuleList)


class LayerTables:
    """Those of one model. It holds no container."""

    def __init__(self) -> None:
        self._tables: weakref.WeakKeyDictionary[torch.nn.Module, dict[str, Any]] | None = None

    def put_back(self, model: torch.nn.Module) -> None:
        """Give each container the table that it had at the first call of this, with what is in it now."""
        if self._tables is None:
            self._tables = weakref.WeakKeyDictionary(
                (module, module._modules) for module in model.modules() if isinstance(module, _CONTAINERS)
            )
        for container, table in self._tables.items():
            if (now := container._modules) is not table:
                table.clear()
                table.update(now)
                container.__dict__["_modules"] = table
