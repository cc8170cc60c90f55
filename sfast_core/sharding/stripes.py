"""A graph for each device, of one that works on an image: each computes a stripe of it.

A convolution needs rows of its neighbours. So each device has some of them around its own, as many as all convolutions
from there on reach to together, and computes them too: a few in a hundred more work, and no exchange. GroupNorms
exchange their sums (:mod:`.moments`), and attention keys and values, as elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import torch
from torch.fx import Graph, Node

from ..capture.functional import element
from ..ops.group_moments import group_moments
from ..rewrite.graph import given, named, shape, value
from .cutting import Cut, Walk
from .images import RULES, begins, enlarged
from .local import Local
from .moments import adapted, joined_moments
from .rows import Rows, Shard, Stripes
from .spelling import name_of


def cut_in_stripes(graph: Graph, devices: int, made_for: Sequence[int] | None = None) -> Cut:
    """Cut a graph, which stays as it is.

    Args: as those of :func:`.cutting.cut`.
    """
    halo = 1 << 20
    for made in ((), range(devices) if made_for is None else made_for):
        walk = _Stripes(devices, halo, made)
        for node in graph.nodes:
            walk.take(node)
        halo = math.ceil(walk.reach)
    return replace(walk.made, what="rows of pixels", rows=walk.height)


class _Stripes(Walk):
    """As there.

    Attributes:
        reach: of how many rows around its own a device needs to know at most, where a cut begins.
        height: of the largest image that is cut.
    """

    def __init__(self, devices: int, halo: int, made_for: Sequence[int]) -> None:
        super().__init__(devices, 0, made_for)
        self._halo = halo
        self._height: dict[Node, int] = {}  # of the image where the cut began that a node comes of
        self._spoilt: dict[Node, Fraction] = {}  # how many rows around the own ones aren't right any more, of those
        self.reach = Fraction(0)
        self.height = 0

    def _local(self, node: Node) -> Local | None:
        if node.op not in ("call_function", "call_method"):
            return None
        name, inputs = name_of(node), node.all_input_nodes
        if not any(each in self._shards for each in inputs):
            return begins(node, name, self._devices, self._halo)
        if name == "interpolate":
            return enlarged(node, self._shards.get, self._gone)
        rule = RULES.get(name)
        return None if rule is None else rule(node, self._shards.get)

    def _computed(self, node: Node, local: Local) -> list[Node]:
        held = [each for each in local.wants if each in self._shards]
        rows = local.shard.rows
        self._height[node] = max((self._height[each] for each in held), default=rows.size)
        more = Fraction(local.spoils * self._height[node], rows.size)
        self._spoilt[node] = max((self._spoilt[each] for each in held), default=Fraction(0)) + more
        self.reach = max(self.reach, self._spoilt[node])
        made = super()._computed(node, local)
        if name_of(node) == "conv2d":
            self.height = max(self.height, rows.size)
        return made

    def _gone(self, node: Node) -> int:
        """How many rows around a device's own, of those that it has, aren't right any more."""
        rows: Any = self._shards[node].rows
        left_out = self._halo * Fraction(rows.size, self._height[node]) - rows.halo
        return int(self._spoilt[node] * Fraction(rows.size, self._height[node]) - left_out)

    def _at_hand(self, node: Node, shard: Shard) -> bool:
        """Of fewer rows around its own each device has all."""
        held = self._shards.get(node)
        if held is None or held.dim != shard.dim:
            return False
        one, other = held.rows, shard.rows
        return one == other or (
            isinstance(one, Stripes) and isinstance(other, Stripes) and one.own == other.own and one.halo >= other.halo
        )

    def _held_as(self, node: Node, shard: Shard) -> list[Node]:
        if not self._at_hand(node, shard) or self._shards[node] == shard:
            return super()._held_as(node, shard)
        ranges = []
        for device in self._made_for:
            ((first, _),), ((begin, end),) = self._shards[node].rows.ranges[device], shard.rows.ranges[device]
            ranges.append([(begin - first, end - first)])
        return self._joined(node, self._own[node], shard.dim, ranges)

    def _made_of(self, node: Node, local: Local, known: dict[Node, list[Node]]) -> list[Node]:
        if name_of(node) != "group_norm":
            return super()._made_of(node, local, known)
        call, rows = named(node), local.shard.rows
        groups, dim = call.num_groups, local.shard.dim
        here, own = self._moments(node, known[call.input], groups, local.shard)
        one_each = Shard(0, Rows.even(self._devices, self._devices))
        (gathered,) = self._exchanged([node], [own], [one_each])
        counts = [end - begin for begin, end in map(rows.sent, range(self._devices))]
        made = []
        for index, (device, graph) in enumerate(zip(self._made_for, self.made.graphs, strict=True)):
            val = own[index].meta["val"]
            whole = self._call(graph, node, joined_moments, gathered[index], counts, val=val)
            weights = [None if each is None else known[each][index] for each in (call.weight, call.bias)]
            channels = value(node).new_empty(shape(node)[1], dtype=torch.float32)
            pair = self._call(
                graph, node, adapted, *weights, here[index], whole, shape(node)[1], call.eps, val=(channels, channels)
            )
            weight, bias = (self._call(graph, node, element, pair, place, val=channels) for place in (0, 1))
            args = given(node, input=known[call.input][index], weight=weight, bias=bias)
            out = torch.empty_like(value(node).narrow(dim, 0, rows.count(device)))
            made.append(self._call(graph, node, node.target, *args, val=out))
        return made

    def _moments(self, node: Node, images: list[Node], groups: int, shard: Shard) -> tuple[list[Node], list[Node]]:
        """Those of what each device has, and of its own rows."""
        here, own = [], []
        for x, device, graph in zip(images, self._made_for, self.made.graphs, strict=True):
            count, (begin, end) = shard.rows.count(device), shard.rows.sent(device)
            val = value(x).new_empty((1, 2, groups), dtype=torch.float32)
            parts, counts = [], []
            for first, last in ((begin, end), (0, begin), (end, count)):
                if first < last:
                    part = value(x).narrow(shard.dim, first, last - first)
                    rows = self._call(graph, node, torch.narrow, x, shard.dim, first, last - first, val=part)
                    parts.append(self._call(graph, node, group_moments, rows, groups, val=val))
                    counts.append(last - first)
            own.append(parts[0])
            together = val.new_empty((len(parts), 2, groups))
            joined = self._call(graph, node, torch.cat, parts, 0, val=together)
            here.append(self._call(graph, node, joined_moments, joined, counts, val=val))
        return here, own
