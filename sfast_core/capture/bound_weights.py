"""Weights that a host's own layers say of what they are: a tensor that a layer brought or cast is this weight of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from ..reporting.reason import reason_of
from ..reporting.reasons.memory import NOT_UNDERSTOOD
from ..weights import Layout, Plain, WeightRef, WeightsElsewhere
from ..weights.part import Part, alike, is_memory, is_plain, memory_of, parts_of
from .bookkeeping import Bookkeeping
from .nodes import call_method


class BoundWeights(Bookkeeping):
    """Bookkeeping of weights that are declared. What a recorder has besides is given here as it is used."""

    failure: str | None
    refuse: Callable[..., None]
    paused: Callable[[], Any]

    def bind_weight(
        self, tensor: torch.Tensor, module: torch.nn.Module, name: str, layout: Layout | None = None
    ) -> None:
        """Declare that ``tensor`` is ``module.name``, perhaps in another dtype.

        ``layout`` says where it lies, where the module itself keeps its weight elsewhere. Where it is in main memory
        and ``tensor`` on a device, it was brought there: so it is at each call.
        """
        if self.failure or tensor in self._nodes or (layout is None and self._table.find(tensor) is not None):
            return
        with self.paused():
            ref = self._table.ref(module, name)
            try:
                stored = None if ref is None else (layout or Plain()).laid((ref,))
            except (ReferenceError, WeightsElsewhere) as error:
                return self.refuse(reason_of(error), passing=True)
            if ref is not None and stored is not None and is_memory(stored):
                stored, part = memory_of(stored)
                ref = replace(ref, part=part)
            if ref is None or stored is None or stored.shape != tensor.shape or is_plain(stored) != is_plain(tensor):
                return self.refuse(NOT_UNDERSTOOD(name=name, kind=type(module).__name__))
            if stored.device != tensor.device and stored.device.type != "cpu":
                return self.refuse(f"the weight {ref} is on {stored.device}, computed on {tensor.device}", passing=True)
            if not is_plain(stored):
                return self._bind_parts(tensor, ref, stored)
            node = self._weight(ref, stored)
            node.meta["device"] = tensor.device
            if stored.dtype != tensor.dtype:
                node = call_method(self.graph, "to", (node, tensor.dtype))
            self._bind(tensor, node)

    def _bind_parts(self, tensor: torch.Tensor, ref: WeightRef, stored: torch.Tensor) -> None:
        """``tensor`` is the weight that is ``stored``, and as that made of parts: perhaps the same ones, perhaps with
        the same values.
        """
        if not alike(tensor, stored):
            return self.refuse(f"the weight {ref} is computed as a {type(tensor).__name__} of another kind")
        for (where, mine), (_, theirs) in zip(parts_of(tensor), parts_of(stored), strict=True):
            if mine not in self._nodes:
                node = self._weight(replace(ref, part=Part(stored, where)), theirs)
                node.meta["device"] = mine.device
                self._bind(mine, node)
