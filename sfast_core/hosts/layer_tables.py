"""Keeps the dictionaries in which containers have their layers the same objects from call to call.

When somebody takes a layer out of a container (``pop``, ``del``), PyTorch gives the container a new dictionary with
what is left. AnimateDiff, which puts layers in for the length of a sampling, does that; in ComfyUI so does each call
where parts of a prompt have LoRAs of their own. A trace ends where a dictionary that it has read is another one, even
if the same layers are back in it.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch

_CONTAINERS = (torch.nn.Sequential, torch.nn.ModuleList)


@dataclass
class _Kept:
    """A container's table, and how many layers were in it when it was the container's."""

    table: dict[str, Any]
    count: int


class LayerTables:
    """Those of one model. It holds no container."""

    def __init__(self) -> None:
        self._kept: weakref.WeakKeyDictionary[torch.nn.Module, _Kept] | None = None

    def put_back(self, model: torch.nn.Module) -> None:
        """Give each container the table that it had before, with what is in it now.

        Not where that one has all its layers still: then somebody has given the container another, and may have kept
        this to put it back.
        """
        if self._kept is None:
            containers = [module for module in model.modules() if isinstance(module, _CONTAINERS)]
            self._kept = weakref.WeakKeyDictionary(
                (each, _Kept(each._modules, len(each._modules))) for each in containers
            )
        for container, kept in self._kept.items():
            now = container._modules
            if now is not kept.table and len(kept.table) != kept.count:
                kept.table.clear()
                kept.table.update(now)
                container.__dict__["_modules"] = now = kept.table
            kept.table, kept.count = now, len(now)
