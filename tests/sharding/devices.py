"""Devices that are pretended: cuts a recorded call's graph and runs what became of it, all of them in step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from sfast_core.capture.nodes import function_of
from sfast_core.runtime.store import WeightStore
from sfast_core.sharding import Arrived, Cut, Gather, cut, prepared
from tests.tracing import CPU, trace


def canonical(module: nn.Module, *inputs: Any, **named: Any) -> Graph:
    """A recorded call's graph in one spelling."""
    graph = trace(module, *inputs, **named).graph
    prepared(graph)
    return graph


def cut_of(module: nn.Module, *inputs: Any, devices: int = 2, fewest: int = 2, **named: Any) -> Cut:
    """A recorded call's graph, cut."""
    return cut(canonical(module, *inputs, **named), devices, fewest)


def run(made: Cut, inputs: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Each device's results. What its kernels are told of shapes is what comes."""
    runs = [_Run(graph, inputs) for graph in made.graphs]
    with torch.no_grad():
        for gather in made.gathers:
            sent = [each.until(gather) for each in runs]
            for each in runs:
                results, numbers = gather.results(sent[0]), range(len(gather.dims))
                for device, tensors in enumerate(sent):
                    for place, tensor in zip(gather.places(results, device, numbers), tensors, strict=True):
                        place.copy_(tensor)
                each.take(results)
        return [list(each.until(None)) for each in runs]


class _Run:
    """One device's graph, on its way."""

    def __init__(self, graph: Graph, inputs: Sequence[torch.Tensor]) -> None:
        given = iter(inputs)
        weights = WeightStore()
        self._values: dict[Node, Any] = {}
        for node in graph.nodes:
            if node.op == "placeholder" and "source" in node.meta:
                (self._values[node],) = weights.tensors([node.meta["source"]], CPU)
            elif node.op == "placeholder":
                self._values[node] = node.meta["constant"] if "constant" in node.meta else next(given)
        self._nodes = iter([node for node in graph.nodes if node.op != "placeholder"])
        self._at: Node | None = None

    def until(self, gather: Gather | None) -> Any:
        """What is handed to the next exchange, or the results."""
        for node in self._nodes:
            if isinstance(node.target, Arrived):
                self._values[node] = self._values[node.args[0]]  # type: ignore[index]
                continue
            args, kwargs = map_arg((node.args, node.kwargs), self._values.__getitem__)
            if node.op == "output" or isinstance(node.target, Gather):
                assert node.target is gather or (gather is None and node.op == "output")
                self._at = node
                return args[0] if gather is None else args
            made = self._values[node] = function_of(node)(*args, **kwargs)
            if isinstance(made, torch.Tensor):
                val = node.meta["val"]
                assert (made.shape, made.dtype) == (val.shape, val.dtype), (node, made.shape, val.shape)

    def take(self, results: tuple[torch.Tensor, ...]) -> None:
        assert self._at is not None
        self._values[self._at] = results
