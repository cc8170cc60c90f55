"""What somebody has put on a tensor, and a tensor with such that goes while the call is recorded."""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING

import torch

from .notes import MISSING

if TYPE_CHECKING:
    from .seen_values import SeenValues

_OTHERS = 3  # who have a tensor's dictionary besides its places: the tensor, its mark, and who counts them


def let_go(reads: weakref.ref[SeenValues], key: int, ref: weakref.ref[torch.Tensor]) -> None:
    """A tensor that something was put on has gone: what that is goes with it, where the notes alone have it. A call makes many, a quantised input each.

    Nothing is taken out: somebody may be going through what is read just now.
    """
    marked = None if (here := reads()) is None else here.marked.get(key)
    if here is None or marked is None or marked.ref is not ref:
        return
    found = (here.places.get((id(marked.table), name)) for name in marked.names)
    places = [place for place in found if place is not None and place.table is marked.table]
    if sys.getrefcount(marked.table) <= len(places) + _OTHERS:
        for place in places:
            place.table, place.then = {}, MISSING
        marked.table = {}
