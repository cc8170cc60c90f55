"""Weights that a host's own layers say of what they are: a tensor that a layer brought or cast is this weight of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from ..reporting.reason import reason_of
from ..reporting.reasons.memory import NOT_UNDERSTOOD
from ..weights import Layout, Plain, Weight, WeightRef, WeightsElsewhere
from ..weights.part import Part, alike, is_memory, is_plain, memory_of, parts_of
from ..weights.ref import beside
from .bookkeeping import Bookkeeping
from .nodes import call_method


class BoundWeights(Bookkeeping):
    """Bookkeeping of weights that are declared. What a recorder has besides is given here as it is used.

    Attributes:
        beside: the modules that aren't below the root, by the nodes of their weights: the call has to have found each
            somewhere.
    """

    failure: str | None
    refuse: Callable[..., None]
    paused: Callable[[], Any]

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.beside: dict[torch.fx.Node, torch.nn.Module] = {}

    def bind_weight(
        self, tensor: torch.Tensor, module: torch.nn.Module, name: str, layout: Layout | None = None
    ) -> None:
        """Declare that ``tensor`` is ``module.name``, perhaps in another dtype.

        ``layout`` says where it lies, where the module itself keeps its weight elsewhere. Where it is in main memory
        and ``tensor`` on a device, it was brought there: so it is at each call. It may be gone when the layer is done.
        """
        known = tensor in self._nodes and not any(tensor is external for external, _, _ in self._externals)
        if self.failure or known or (layout is None and self._table.find(tensor) is not None):
            return
        with self.paused():
            below = self._table.ref(module, name)
            ref = below or self._ref_beside(tensor, module, name, layout)
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
                return self._bind_parts(tensor, ref, stored, stays=layout is None)
            node = self._external_as(ref, tensor) or self._weight(ref, stored, stays=layout is None)
            node.meta["device"] = tensor.device
            if below is None:
                self.beside[node] = module
                self._note_reader(node)
            if stored.dtype != tensor.dtype:
                node = call_method(self.graph, "to", (node, tensor.dtype))
            self._bind(tensor, node)

    def _ref_beside(
        self, tensor: torch.Tensor, module: torch.nn.Module, name: str, layout: Layout | None
    ) -> WeightRef | None:
        """That of a weight that isn't below the root, a network's beside the model; None where it isn't on the device
        that it is read on, since nobody would bring it.
        """
        kept = getattr(module, name, None)
        if layout is not None or not isinstance(kept, torch.Tensor) or kept.device != tensor.device:
            return None
        return beside(module, name)

    def _external_as(self, ref: WeightRef, tensor: torch.Tensor) -> torch.fx.Node | None:
        """The node of a tensor that was read before its layer said whose weight it is; None for others."""
        for index, (external, node, _) in enumerate(self._externals):
            if external is tensor:
                del self._externals[index]
                node.meta["source"] = Weight((ref,))
                self._weights[ref] = node
                return node
        return None

    def check_beside(self, watched: Callable[[torch.nn.Module], bool]) -> None:
        """The call is over, and ``watched`` tells which modules it found where a guard looks for them."""
        for node, module in self.beside.items():
            if self.failure is None and not watched(module):
                self.refuse(NOT_UNDERSTOOD(name=node.name, kind=type(module).__name__))
                self._blame_reader(node)

    def _bind_parts(self, tensor: torch.Tensor, ref: WeightRef, stored: torch.Tensor, stays: bool) -> None:
        """``tensor`` is the weight that is ``stored``, and as that made of parts: perhaps the same ones, perhaps with
        the same values.
        """
        if not alike(tensor, stored):
            return self.refuse(f"the weight {ref} is computed as a {type(tensor).__name__} of another kind")
        for (where, mine), (_, theirs) in zip(parts_of(tensor), parts_of(stored), strict=True):
            if mine not in self._nodes:
                node = self._weight(replace(ref, part=Part(stored, where)), theirs, stays)
                node.meta["device"] = mine.device
                self._bind(mine, node)
