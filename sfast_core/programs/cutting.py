"""Cuts a recorded call's graph, and those of its callbacks, where live code runs, into what the runtime can run."""

from __future__ import annotations

from collections.abc import Sequence

from torch.fx import Graph, Node

from ..capture import CaptureError
from ..capture.live import LiveCall
from ..runtime.segments import Body, cut, is_cut


def callbacks_of(live: Sequence[LiveCall]) -> list[Graph]:
    """The graphs of the callbacks of these live calls."""
    return [way.graph for call in live for ways in call.callbacks for way in ways]


def cut_up(graph: Graph, live: Sequence[LiveCall], parameters: list[Node]) -> Body | None:
    """The graph cut where live code runs; None where none does.

    Args:
        graph: of a recorded call, rewritten.
        live: the call's live calls, in the order in which they were recorded.
        parameters: the placeholders of weights and constants of all graphs, in the program's order.

    Raises:
        CaptureError: the rewrite has dropped a live call, or changed their order.
    """
    if not any(is_cut(node) for node in graph.nodes):
        if live:
            raise CaptureError("a call of code that runs live was rewritten away")
        return None
    index = {node: place for place, node in enumerate(parameters)}
    order = [node.target for node in graph.nodes if isinstance(node.target, LiveCall)]
    if order != [call for call in live if any(call is each for each in order)]:
        raise CaptureError("calls of code that runs live were rewritten into another order")

    def bodies(call: LiveCall) -> list[list[Body]]:
        return [[cut(way.graph, index.get, bodies, way.outer) for way in ways] for ways in call.callbacks]

    body = cut(graph, index.get, bodies)
    if sum(part.call is not None for part in body.all_lives()) != len(live):
        raise CaptureError("a call of code that runs live was rewritten away")
    return body
