"""Estimates the time of a graph by arithmetic: floating-point operations, bytes read and written, bytes exchanged."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

from ..rewrite.graph import named, shape, value
from .cutting import Cut
from .gather import Arrived, Gather
from .shapes import VIEWS
from .spelling import name_of

_STATISTICS = ("group_norm", "group_moments")


@dataclass(frozen=True)
class Speeds:
    """How fast devices are.

    Attributes:
        operations: floating-point operations of products, in a second.
        memory_bytes: bytes read and written, in a second.
        link_bytes: bytes from one device to another, in a second.
        exchange_s: the seconds that each exchange takes besides its bytes, for launches and waiting.
    """

    operations: float
    memory_bytes: float
    link_bytes: float
    exchange_s: float


@dataclass(frozen=True)
class Times:
    """The least time of one call in seconds, on one device and on several, and the bytes that each device receives."""

    alone_s: float
    own_s: float
    exchanged_s: float
    exchanged_bytes: int

    @property
    def gain(self) -> float:
        """How many times as fast several devices are."""
        return self.alone_s / (self.own_s + self.exchanged_s)


def times(graph: Graph, cut: Cut, speeds: Speeds) -> Times:
    """The times of a graph on one device, and of a cut of it. The first device has at least as many rows as others."""
    moved = sum(received(node) for node in cut.graphs[0].nodes if isinstance(node.target, Arrived))
    exchanged = moved / speeds.link_bytes + len(cut.gathers) * speeds.exchange_s
    return Times(_seconds(graph.nodes, speeds), _seconds(cut.graphs[0].nodes, speeds), exchanged, moved)


def received(arrived: Node) -> int:
    """The bytes that the first device receives in an exchange."""
    target: Any = arrived.target
    pairs = zip(arrived.meta["val"], target.gather.counts, strict=True)
    return sum(val.nbytes * sum(counts[1:]) // sum(counts) for val, counts in pairs)


def _seconds(nodes: Iterable[Node], speeds: Speeds) -> float:
    return sum(max(_operations(node) / speeds.operations, _bytes(node) / speeds.memory_bytes) for node in nodes)


def _operations(node: Node) -> float:
    """The operations of a product; a multiplication and an addition are two."""
    name = name_of(node)
    if name == "linear":
        return 2.0 * value(node).numel() * shape(named(node).input)[-1]
    if name == "sdpa":
        call = named(node)
        return 2.0 * value(call.query).numel() * shape(call.key)[-2] + 2.0 * value(node).numel() * shape(call.key)[-2]
    if name in ("conv2d", "conv3d"):
        return 2.0 * value(node).numel() * math.prod(shape(named(node).weight)[1:])
    if name in ("matmul", "bmm") and isinstance(node.args[0], Node):
        return 2.0 * value(node).numel() * shape(node.args[0])[-1]
    return 0.0


def _bytes(node: Node) -> int:
    """The bytes that a product or statistics move; of what is fused with others those written; of views none."""
    name = name_of(node)
    if not name or name in VIEWS or isinstance(node.target, (Gather, Arrived)):
        return 0
    read = node.all_input_nodes if name in _STATISTICS or _operations(node) else ()
    return sum(_size(each.meta.get("val")) for each in (node, *read))


def _size(val: Any) -> int:
    if isinstance(val, torch.Tensor):
        return val.nbytes
    return sum(map(_size, val)) if isinstance(val, (tuple, list)) else 0
