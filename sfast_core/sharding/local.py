"""What a rule says about a node that each device computes for its own rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch.fx import Node

from .rows import Rows, Shard

Held = Callable[[Node], "Shard | None"]  #: tells how a value is held; None: whole on each device


@dataclass(frozen=True)
class Local:
    """How each device computes a node.

    Attributes:
        shard: how its result is held, or each of its results.
        wants: how its arguments have to be held; those that aren't named, as a whole.
        args: gives its arguments on one device, where they depend on the number of rows. None: as in the graph.
        spoils: how many more of the neighbours' rows become wrong.
        in_any_order: arguments that are needed as a whole but with their rows in any order, the same for all of them.
    """

    shard: Shard
    wants: Mapping[Node, Shard] = field(default_factory=dict)
    args: Callable[[int], tuple[Any, ...]] | None = None
    in_any_order: tuple[Node, ...] = ()
    spoils: int = 0


Rule = Callable[[Node, Held], "Local | None"]  #: None: the node is computed from whole arguments


def none_empty(rows: Rows) -> bool:
    """Whether each device has at least one row: kernels needn't handle none."""
    return all(map(rows.count, range(len(rows.ranges))))
