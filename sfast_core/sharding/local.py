"""What a rule says of a node that each device computes of its own rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch.fx import Node

from .rows import Rows, Shard

Held = Callable[[Node], "Shard | None"]  #: how a value is held; None: whole, on each device


@dataclass(frozen=True)
class Local:
    """A node as each device computes it.

    Attributes:
        shard: how its result is held, or each of its results.
        wants: how each of its arguments has to be held. Those that aren't named: whole.
        args: its arguments on one device, where they say how many rows there are. None: as in the graph.
        spoils: how many more of the neighbours' rows that a device has of its argument aren't right any more.
        in_any_order: arguments that are wanted whole, and whose rows may come in any order, the same for all of them.
    """

    shard: Shard
    wants: Mapping[Node, Shard] = field(default_factory=dict)
    args: Callable[[int], tuple[Any, ...]] | None = None
    in_any_order: tuple[Node, ...] = ()
    spoils: int = 0


Rule = Callable[[Node, Held], "Local | None"]  #: None: it is computed of whole arguments


def none_empty(rows: Rows) -> bool:
    """Whether each device has some: no kernel is asked what it makes of none."""
    return all(map(rows.count, range(len(rows.ranges))))
