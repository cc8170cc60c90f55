"""Makes each device's graph of one graph: nodes compute their own rows where a rule says how, else all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from ..capture.functional import element
from ..capture.nodes import call_function, function_of, new_graph
from ..rewrite.graph import calls, metas, results_of
from .gather import Arrived, Gather
from .local import Local
from .rows import Shard
from .rules import RULES, begins, lengths
from .shapes import VIEWS
from .spelling import name_of, named_nodes


@dataclass
class Cut:
    """A cut graph.

    Attributes:
        graphs: one for each device, with the inputs, weights and results of the graph that was cut.
        gathers: the exchanges, in order.
        rows: the largest number of rows that are divided.
        what: what these are, in words.
        unknown: the names of operations that needed whole tensors, since no rule knows how to divide them, with how
            often that was.
    """

    graphs: list[Graph]
    gathers: list[Gather] = field(default_factory=list)
    rows: int = 0
    what: str = "tokens"
    unknown: dict[str, int] = field(default_factory=dict)


def row_counts(graph: Graph) -> list[int]:
    """The numbers of rows of linear layers, the largest first: :func:`cut` may begin at any of them."""
    return sorted(lengths(named_nodes(graph)), reverse=True)


def cut(graph: Graph, devices: int, fewest: int, made_for: Sequence[int] | None = None) -> Cut:
    """Cut a graph, which stays as it is.

    Args:
        graph: canonicalised.
        devices: their number.
        fewest: the cut begins at linear layers and norms of at least so many rows.
        made_for: the devices to make graphs for. None: all.
    """
    walk = Walk(devices, fewest, range(devices) if made_for is None else made_for)
    for node in graph.nodes:
        walk.take(node)
    return walk.made


class Walk:
    """Walks through a graph, and makes of each node one for each device's graph. For its arguments see :func:`cut`."""

    def __init__(self, devices: int, fewest: int, made_for: Sequence[int]) -> None:
        self._devices, self._fewest, self._made_for = devices, fewest, made_for
        self.made = Cut([new_graph() for _ in made_for])
        self._shards: dict[Node, Shard] = {}
        # for each node of the graph, the nodes of the devices' graphs:
        self._own: dict[Node, list[Node]] = {}  # as the value is held: whole, or a device's own rows
        self._whole: dict[Node, list[Node]] = {}  # of a cut value, the whole one
        self._gathered: dict[Node, list[Node]] = {}  # likewise, with the rows in the order of devices
        self._picked: dict[tuple[Node, Shard], list[Node]] = {}  # of a whole value, a device's rows

    def take(self, node: Node) -> None:
        """Make the devices' nodes for a node."""
        if node.op == "placeholder":
            self._own[node] = [self._copy(graph, node, {}) for graph in self.made.graphs]
            return
        local = self._local(node)
        if local is not None:
            self._shards[node] = local.shard
            self._own[node] = self._computed(node, local)
            self.made.rows = max(self.made.rows, local.shard.rows.size)
            return
        cut_ones = [each for each in node.all_input_nodes if each in self._shards]
        if cut_ones and node.op != "output":
            name = name_of(node)
            self.made.unknown[name] = self.made.unknown.get(name, 0) + 1
        self._gather(cut_ones)
        self._own[node] = self._copies(node, {each: self._as_whole(each) for each in node.all_input_nodes})

    def _local(self, node: Node) -> Local | None:
        if node.op not in ("call_function", "call_method") or not node.all_input_nodes:
            return None
        name = name_of(node)
        if any(each in self._shards for each in node.all_input_nodes):
            rule = RULES.get(name)
            found = None if rule is None else rule(node, self._shards.get)
            if found is not None:
                return found
        if any(each in self._shards for each in node.all_input_nodes):
            return None
        return begins(node, name, self._fewest, self._devices) if node.op == "call_function" else None

    def _computed(self, node: Node, local: Local) -> list[Node]:
        """Nodes that compute each device's own rows."""
        whole = [each for each in node.all_input_nodes if each not in local.wants]
        moved = [each for each, shard in local.wants.items() if each in self._shards and not self._at_hand(each, shard)]
        self._gather([each for each in (*whole, *moved) if each in self._shards])
        known: dict[Node, list[Node]] = {}
        for each in node.all_input_nodes:
            if (shard := local.wants.get(each)) is not None:
                known[each] = self._held_as(each, shard)
            else:
                known[each] = self._gathered_views(each) if each in local.in_any_order else self._as_whole(each)
        return self._made_of(node, local, known)

    def _at_hand(self, node: Node, shard: Shard) -> bool:
        """Whether each device already has these rows of a cut value."""
        return self._shards.get(node) == shard

    def _held_as(self, node: Node, shard: Shard) -> list[Node]:
        return self._own[node] if self._at_hand(node, shard) else self._rows_of(node, shard)

    def _made_of(self, node: Node, local: Local, known: dict[Node, list[Node]]) -> list[Node]:
        made = []
        for index, (device, graph) in enumerate(zip(self._made_for, self.made.graphs, strict=True)):
            nodes = {each: those[index] for each, those in known.items()}
            copy = self._copy(graph, node, nodes, None if local.args is None else local.args(device))
            copy.meta["val"] = _value(node, copy, local.shard, device)
            made.append(copy)
        return made

    # -- whole tensors of rows, and rows of whole tensors --------------------------------------------------------------

    def _gather(self, nodes: Sequence[Node]) -> None:
        """Give all devices these values as a whole, by one exchange. The tensors that they are views of are exchanged,
        so that the views stay as the passes' patterns know them.
        """
        bases = dict.fromkeys(base for node in nodes if (base := self._base(node)) not in self._gathered)
        if not bases:
            return
        shards = [self._shards[base] for base in bases]
        own = [self._sent(base, shard) for base, shard in zip(bases, shards, strict=True)]
        found = self._exchanged(list(bases), own, shards)
        self._gathered.update(zip(bases, found, strict=True))

    def _exchanged(self, of: Sequence[Node], own: Sequence[list[Node]], shards: Sequence[Shard]) -> list[list[Node]]:
        """All rows of tensors of which each device sends its own, in the order of devices."""
        ends = [[shard.rows.sent(device) for device in range(self._devices)] for shard in shards]
        counts = [[end - begin for begin, end in pairs] for pairs in ends]
        gather = Gather(len(self.made.gathers), [shard.dim for shard in shards], counts)
        self.made.gathers.append(gather)
        found: list[list[Node]] = [[] for _ in of]
        for index, graph in enumerate(self.made.graphs):
            tensors = [each[index] for each in own]
            vals = gather.results([each.meta["val"] for each in tensors])
            sent = self._call(graph, of[0], gather, *tensors, val=())
            exchange = self._call(graph, of[0], Arrived(gather), sent, val=vals)
            for place, node in enumerate(of):
                found[place].append(self._call(graph, node, element, exchange, place, val=vals[place]))
        return found

    def _sent(self, node: Node, shard: Shard) -> list[Node]:
        """The rows of a cut value that are a device's own, without those of its neighbours."""
        ranges = [shard.rows.sent(device) for device in self._made_for]
        own = self._own[node]
        if all(pair == (0, shard.rows.count(device)) for pair, device in zip(ranges, self._made_for, strict=True)):
            return own
        return self._joined(node, own, shard.dim, [[pair] for pair in ranges])

    def _base(self, node: Node) -> Node:
        """The tensor that a value is a view of, if it shows all of that."""
        while calls(node, torch.reshape, torch.permute) and node.args[0] in self._shards:
            node = node.args[0]
        return node

    def _gathered_views(self, node: Node) -> list[Node]:
        """All rows in the order of devices."""
        if node not in self._gathered:
            seen: Any = node.args[0]
            self._gathered[node] = self._copies(node, {seen: self._gathered_views(seen)})
        return self._gathered[node]

    def _as_whole(self, node: Node) -> list[Node]:
        if node not in self._shards:
            return self._own[node]
        if node not in self._whole:
            gathered, shard = self._gathered_views(node), self._shards[node]
            pieces = shard.rows.in_order()
            self._whole[node] = (
                gathered if len(pieces) == 1 else self._joined(node, gathered, shard.dim, [pieces] * len(gathered))
            )
        return self._whole[node]

    def _rows_of(self, node: Node, shard: Shard) -> list[Node]:
        """The rows of a whole tensor that each device is to have."""
        if (node, shard) not in self._picked:
            ranges = [shard.rows.ranges[device] for device in self._made_for]
            self._picked[node, shard] = self._joined(node, self._as_whole(node), shard.dim, ranges)
        return self._picked[node, shard]

    def _joined(
        self, node: Node, own: Sequence[Node], dim: int, ranges: Sequence[Sequence[tuple[int, int]]]
    ) -> list[Node]:
        """These ranges of each device's tensor, joined."""
        made = []
        for x, graph, pieces in zip(own, self.made.graphs, ranges, strict=True):
            val = x.meta["val"]
            spans = [(begin, end - begin) for begin, end in pieces or ((0, 0),)]  # an empty one is never read
            parts = [self._call(graph, node, torch.narrow, x, dim, *span, val=val.narrow(dim, *span)) for span in spans]
            joined = torch.cat([part.meta["val"] for part in parts], dim)
            made.append(parts[0] if len(parts) == 1 else self._call(graph, node, torch.cat, parts, dim, val=joined))
        return made

    # ------------------------------------------------------------------------------------------------------------------

    def _copies(self, node: Node, known: dict[Node, list[Node]]) -> list[Node]:
        return [
            self._copy(graph, node, {each: those[index] for each, those in known.items()})
            for index, graph in enumerate(self.made.graphs)
        ]

    def _copy(self, graph: Graph, node: Node, known: dict[Node, Node], args: tuple[Any, ...] | None = None) -> Node:
        copy = graph.create_node(node.op, node.target, name=node.name)
        copy.args = map_arg(node.args if args is None else args, known.__getitem__)
        copy.kwargs = map_arg(node.kwargs, known.__getitem__)
        copy.meta = dict(node.meta)
        return copy

    def _call(self, graph: Graph, of: Node, function: Callable[..., Any], *args: Any, val: Any) -> Node:
        made = call_function(graph, function, args)
        made.meta.update(val=val, device=of.meta.get("device"))
        return made


def _value(node: Node, copy: Node, shard: Shard, device: int) -> Any:
    """The meta value of a node for a device's rows: a view of its argument's, or in the whole value's order."""
    if name_of(node) in VIEWS:
        args, kwargs = metas((copy.args, copy.kwargs))
        return function_of(copy)(*args, **kwargs)
    count, val = shard.rows.count(device), node.meta.get("val")
    if isinstance(val, torch.Tensor):
        return torch.empty_like(val.narrow(shard.dim, 0, count))
    found = results_of(node)  # what several are may not be recorded, but for those that are taken
    vals = [found[index].meta["val"] if index in found else None for index in range(max(found, default=-1) + 1)]
    return tuple(None if each is None else torch.empty_like(each.narrow(shard.dim, 0, count)) for each in vals)
