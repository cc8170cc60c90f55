"""Makes a recorded call one for another device than it was recorded on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_aggregate

from ..capture import Trace
from ..capture.leaf import Leaf
from ..capture.nodes import new_graph


def why_not_retargetable(trace: Trace, whole: Trace, home: torch.device) -> str | None:
    """Why other devices can't compute parts of calls like this one, or None.

    Args:
        trace: the trace of a part.
        whole: the trace of the whole call, or the same.
        home: the device that both were recorded on.
    """
    outputs = trace.outputs
    if trace.live:
        return "other people's code runs between its graphs"
    if not outputs.effects.within(whole.outputs.effects) or outputs.writes.indices or outputs.states:
        return "it leaves something behind besides its result"
    if outputs.has_callers_own:
        return "it returns a list or dict that it was given"
    for node in trace.graph.nodes:
        if isinstance(node.target, Leaf):
            return f"{node.target.__name__} runs as it is, on the weights that the model has"
        if node.op == "output" and any(result.meta["device"] != home for result in node.args[0]):
            return f"a result isn't on {home}"
    return None


def copied(trace: Trace) -> Trace:
    """The trace with a copy of its graph. Lowering a trace uses its graph up."""
    return retargeted(trace, None, None)


def retargeted(trace: Trace, home: torch.device | None, there: torch.device | None) -> Trace:
    """A copy of the trace for the device ``there``: ``home`` is renamed in its graph, and constants are moved."""
    graph, known = new_graph(), dict[Node, Node]()

    def moved(value: Any) -> Any:
        if isinstance(value, torch.device) and value == home:
            return there
        return str(there) if isinstance(value, str) and value == str(home) else value

    for node in trace.graph.nodes:
        copy = known[node] = _copied(graph, node, known)
        if home is not None and home != there:
            copy.args, copy.kwargs = map_aggregate(copy.args, moved), map_aggregate(copy.kwargs, moved)
            if copy.meta.get("device") == home:
                copy.meta["device"] = there
            if (constant := copy.meta.get("constant")) is not None and constant.device == home:
                copy.meta["constant"] = constant.to(there)
    return replace(trace, graph=graph)


def _copied(graph: Graph, node: Node, known: dict[Node, Node]) -> Node:
    copy = graph.node_copy(node, known.__getitem__)
    copy.meta = dict(node.meta)
    return copy
