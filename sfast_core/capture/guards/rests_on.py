"""What a trace rests on besides what its call read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from .leads import Placed


class RestsOn(NamedTuple):
    """What a trace rests on besides, as a recorder knows it.

    Attributes:
        bound: parameters and buffers that it reads as weights: the table of each, by the table's id and the name. The
            weight store watches these; what others have put on them is watched here.
        fixed: the ids of tensors that it reads where they were found, and of what it writes to: these have to stay the
            very objects.
        placed: what of its inputs is found by places that its signature has, see :class:`.leads.Leads`.
        set_live: whether code that runs live within the call sets something by a name; None where none does.
        keeps_state: whether what a library has put around a module computes by what came before.
    """

    bound: Mapping[tuple[int, str], dict[str, Any]] = MappingProxyType({})
    fixed: Collection[int] = ()
    placed: Placed = Placed()
    set_live: Callable[[Any], bool] | None = None
    keeps_state: Callable[[torch.nn.Module], bool] = lambda _: False
