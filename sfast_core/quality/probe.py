"""Measures what layers in 8 bits cost: runs a recorded graph as it is, and with layers rounded as their products do."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.fx import Graph, Node

from ..capture.autocast import autocast_off
from ..ops.quantise.at_once import quantise_at_once
from ..programs.proof import largest_distance
from ..rewrite.graph import named, shape
from ..runtime.any_store import Store
from ..runtime.instructions import Function, instructions_of
from ..weights.eight_bits import group_of

_ROTATED_BELOW = 0.8  #: a layer is rotated where that brings its error below this part: rotating takes time, too
_MARGIN = 0.9  #: the part of the budget that a choice by estimates may use
_TRIES = 5


@dataclass(frozen=True)
class Layer:
    """A linear layer of a recorded call.

    Attributes:
        node: its call in the graph.
        name: its name in the module.
        work: its number of multiplications.
    """

    node: Node
    name: str
    work: int

    @property
    def kind(self) -> str:
        """Its name without the numbers of blocks: the same for such layers at all depths."""
        return re.sub(r"\d+", "#", self.name)


class Recorded(NamedTuple):
    """A recorded call that can be run again.

    Attributes:
        graph: its graph.
        layers: the layers that may be rounded.
        inputs: the call's tensors.
        store: of the module's weights.
        device: where it runs.
    """

    graph: Graph
    layers: list[Layer]
    inputs: Sequence[torch.Tensor]
    store: Store
    device: torch.device


class _Switch:
    """Stands for a layer in the graph: computes it exactly, or rounded, or exactly while measuring the rounding."""

    def __init__(self, layer: Layer) -> None:
        self.group = group_of(shape(named(layer.node).weight)[1])
        self.rounded = self.rotated = self.measuring = False
        self.errors: list[torch.Tensor] = []  # squared, plain and rotated, and the product's own size

    def __call__(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        if self.rounded:
            return _rounded(x, weight, bias, self.group if self.rotated else 0)
        exact = F.linear(x, weight, bias)
        if self.measuring:
            groups = (0, self.group) if self.group else (0,)
            apart = [(_rounded(x, weight, bias, group).float() - exact.float()).square().mean() for group in groups]
            self.errors = [apart[0], apart[-1], exact.float().square().mean()]
        return exact


def _rounded(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, group: int) -> torch.Tensor:
    """A product of 8 bits by one of x's dtype, in which its numbers are exact; their 128ths fit float16's sums."""
    (qx, sx), (qw, sw) = quantise_at_once(x, group), quantise_at_once(weight, group)
    total = F.linear(qx.to(x.dtype) / 128, qw.to(x.dtype) / 128).float() * (sx * sw.reshape(-1) * 128**2)
    return (total if bias is None else total + bias.float()).to(x.dtype)


class Probe:
    """A graph that can be run with some of its layers rounded."""

    def __init__(self, call: Recorded) -> None:
        self._layers, graph = call.layers, call.graph
        self._switches = {layer.node: _Switch(layer) for layer in call.layers}
        places = {node: index for index, node in enumerate(graph.nodes)}
        instructions, outputs = instructions_of(graph, places)
        at = {places[node]: switch for node, switch in self._switches.items()}
        instructions = [each._replace(function=at.get(each.result, each.function)) for each in instructions]
        given = [node for node in graph.nodes if node.op == "placeholder"]
        self._function = Function(instructions, [places[node] for node in given], outputs, len(places))
        weights = [node for node in given if "source" in node.meta]
        of_weights = iter(call.store.tensors([node.meta["source"] for node in weights], call.device))
        of_call = iter(call.inputs)
        self._arguments = [_argument(node, of_weights, of_call) for node in given]
        self._exact = self._run({})

    def choose(self, budget: float) -> tuple[dict[str, bool], float]:
        """The layers to compute in 8 bits, by name, with whether each is rotated; and the result's distance then."""
        everything = dict.fromkeys(self._layers, False)
        if (distance := self._distance(everything)) <= budget:
            return _by_name(everything), distance
        errors = self._errors()
        everything = {layer: errors[layer][1] < _ROTATED_BELOW**2 * errors[layer][0] for layer in self._layers}
        if any(everything.values()) and (distance := self._distance(everything)) <= budget:
            return _by_name(everything), distance
        costs = self._costs(everything, errors)
        room = (_MARGIN * budget) ** 2
        for _ in range(_TRIES):
            taken, spent = {}, 0.0
            for layer in sorted(self._layers, key=lambda layer: (costs[layer] / layer.work, layer.name)):
                if spent + costs[layer] <= room:
                    taken[layer], spent = everything[layer], spent + costs[layer]
            if not taken or (distance := self._distance(taken)) <= budget:
                return _by_name(taken), distance if taken else 0.0
            room *= 0.5 if not math.isfinite(distance) else min(0.7, (budget / distance) ** 2)
        return {}, 0.0

    def _costs(self, everything: dict[Layer, bool], errors: dict[Layer, tuple[float, float]]) -> dict[Layer, float]:
        """For each layer the square of what it adds to the result's distance. It is measured for each kind of layers
        together, and divided among them in proportion to their own errors.
        """
        kinds: dict[str, list[Layer]] = defaultdict(list)
        for layer in self._layers:
            kinds[layer.kind].append(layer)
        costs = {}
        for layers in kinds.values():
            square = self._distance({layer: everything[layer] for layer in layers}) ** 2
            own = [errors[layer][everything[layer]] for layer in layers]
            total = sum(own)
            costs.update(
                {
                    layer: square * each / total if total else square / len(own)
                    for layer, each in zip(layers, own, strict=True)
                }
            )
        return costs

    def _errors(self) -> dict[Layer, tuple[float, float]]:
        """The square of each layer's own relative error, without rotation and with it."""
        self._run({}, measuring=True)
        measured = (
            torch.stack([torch.stack(self._switches[layer.node].errors) for layer in self._layers]).double().tolist()
        )
        return {
            layer: (plain / (size or 1.0), rotated / (size or 1.0))
            for layer, (plain, rotated, size) in zip(self._layers, measured, strict=True)
        }

    def _distance(self, rounded: dict[Layer, bool]) -> float:
        """The largest relative L2 distance of a result when these layers are rounded."""
        return largest_distance(self._run(rounded), self._exact)

    def _run(self, rounded: dict[Layer, bool], measuring: bool = False) -> list[torch.Tensor]:
        for layer in self._layers:
            switch = self._switches[layer.node]
            switch.rounded, switch.rotated, switch.measuring = layer in rounded, rounded.get(layer, False), measuring
        with torch.inference_mode(False), torch.no_grad(), autocast_off():
            return [result.clone() for result in self._function(*self._arguments) if isinstance(result, torch.Tensor)]


def _argument(node: Node, of_weights: Iterator[torch.Tensor], of_call: Iterator[torch.Tensor]) -> Any:
    if "source" in node.meta:
        return next(of_weights)
    return node.meta["constant"] if "constant" in node.meta else next(of_call)


def _by_name(layers: dict[Layer, bool]) -> dict[str, bool]:
    return {layer.name: rotated for layer, rotated in layers.items()}
