"""Where weights lie under dynamic VRAM: in pages of the host's, and what is too small for those in copies of ours.

A module with ``_v`` has its weights at a fixed virtual address, whose pages come and go. Tensors of modules up to 16 KB
live outside that range and get new storage at each sampling: graphs read copies of those at addresses that stay, 2 MB
for SD1.5.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from ...reporting.reasons.memory import NOT_PAGED
from ...weights import Plain, WeightRef, WeightsElsewhere
from .partly_resident import own_tensor

_RESIDENT = {"weight": "_v_weight", "bias": "_v_bias"}
_NONE: tuple[None, None] = (None, None)


class Page(Plain):
    """The layout of every weight of a model that is loaded so. Valid while the host's range is pinned."""

    def __init__(self) -> None:
        self._copies: dict[WeightRef, tuple[torch.Tensor, weakref.ref[torch.Tensor]]] = {}

    def laid(self, refs: Sequence[WeightRef]) -> torch.Tensor:
        """The tensor in the host's pages, or a copy of a small one that is refreshed where the host has put another
        there.

        Asked for every weight at once, so it reads the module's tables itself: getattr took 3 ms for SD1.5's 686
        weights.

        Raises:
            WeightsElsewhere: the host hasn't put the weight into its range yet.
            WeightsChanged: the host has made it of other parts.
        """
        (ref,) = refs
        own = ref.module().__dict__
        if "_v" in own:
            tensor = own.get(_RESIDENT.get(ref.name, ""))
            if tensor is None:
                raise WeightsElsewhere(NOT_PAGED(weight=ref))
            return tensor if ref.part is None else ref.part.at(tensor, ref)
        current = own["_parameters"].get(ref.name) if ref.part is None else None
        if current is None:
            current = ref.tensor()
        mine, seen = self._copies.get(ref, _NONE)
        if seen is None or seen() is not current:
            mine = self._copied(ref, current, mine)
        return mine

    lay = laid

    def place(self, ref: WeightRef) -> tuple[dict[str, Any], str]:
        """Where the host keeps the weight in its range, or the module keeps it."""
        own = ref.module().__dict__
        return (own, _RESIDENT.get(ref.name, "")) if "_v" in own else super().place(ref)

    def forget(self) -> None:
        """Drop the copies of small weights."""
        self._copies.clear()

    def _copied(self, ref: WeightRef, current: torch.Tensor, mine: torch.Tensor | None) -> torch.Tensor:
        if mine is None or mine.shape != current.shape or mine.dtype != current.dtype or mine.device != current.device:
            with torch.inference_mode(False):
                mine = torch.empty_like(current)
        mine.copy_(current)
        self._copies[ref] = (mine, weakref.ref(current))
        return mine


class PageOrOwn(Page):
    """Where a recorded call has found a weight: in the range, or, where the host had no room for it there, in main
    memory.
    """

    def laid(self, refs: Sequence[WeightRef]) -> torch.Tensor:
        """See :class:`Page`."""
        own = refs[0].module().__dict__
        return own_tensor(refs[0]) if "_v" in own and own.get("_v_signature") is None else super().laid(refs)

    lay = laid
