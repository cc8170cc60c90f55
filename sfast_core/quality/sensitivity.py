"""Chooses linear layers to compute in 8 bits: as many as the budget of error allows, measured on a real call.

The call's graph is run as it is, and with layers rounded as 8-bit products round. If all layers together stay within
the budget, all take part; that takes two runs. Otherwise the error of each layer is measured by itself (with rotation
and without), and that of each kind of layers at the model's result. Rounding errors add up as squares, so the layers
that cost most for the time that they save are left out. The choice is measured as a whole before it is taken, and kept
on disk.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch.fx import Graph, Node

from ..machine.choices import Choice, Choices
from ..ops.quantise import quantise
from ..ops.scaled_linear import scaled_linear
from ..rewrite.graph import is_input, named, shape, value
from ..rewrite.patterns import HasImpl, from_input
from ..runtime.any_store import Store
from ..runtime.segments import is_cut
from ..target import Target
from ..weights import Weight, WeightsElsewhere
from ..weights.eight_bits import NUMBERS
from .levels import Allowed
from .probe import Layer, Probe, Recorded

#: The least work of all layers that read one input: below, quantising that takes as long as the products save (H100).
_LEAST_WORK = 2**32
#: The fewest rows of a layer's input. A prompt needs four times as many: the projections of all layers become one
#: product in 16 bits, which reads each weight once.
_FEW_ROWS = 256
_VERSION = 1
_OUT, _PLAIN, _ROTATED = "-pr"


@dataclass
class _Decision:
    rotated: dict[str, bool] = field(default_factory=dict)  # the layers that take part
    measured: bool = False  # in this very call


class Sensitivity:
    """The choices for one compiled module, for all its calls."""

    def __init__(self) -> None:
        self._known: dict[Allowed, _Decision] = {}
        self._distrusted: set[Allowed] = set()
        self._refused: dict[Allowed, str] = {}

    def of_call(self, inputs: Sequence[torch.Tensor]) -> SensitivityOfCall:
        """With the tensors of a recorded call."""
        return SensitivityOfCall(self, inputs)

    def over_budget(self, allowed: Allowed, why: str) -> None:
        """Note that the last choice is too far off: the next is measured anew, but not twice in one call."""
        known = self._known.pop(allowed, None)
        if known is not None and known.measured:
            self._refused[allowed] = why
        self._distrusted.add(allowed)

    def chooser(
        self,
        allowed: Allowed,
        inputs: Sequence[torch.Tensor],
        store: Store,
        choices: Choices,
        target: Target,
        has_impl: HasImpl,
        say: Callable[[str], None],
    ) -> Callable[[Graph, Sequence[Node]], dict[Node, bool]]:
        """A function that chooses among the layers of one call's graph.

        Args:
            allowed: what the user allows.
            inputs: the call's tensors.
            store: of the module's weights.
            choices: those kept on disk.
            target: where it runs. Without CUDA no kernels are needed: ops run in plain PyTorch.
            has_impl: tells whether a kernel computes a call of an op.
            say: is told what was chosen, as a clause.
        """

        def choose(graph: Graph, candidates: Sequence[Node]) -> dict[Node, bool]:
            named_so = [Layer(node, _name(node), value(node).numel() * shape(node.args[1])[1]) for node in candidates]
            wanted = [layer for layer in named_so if allowed.layer(layer.name)]
            layers = _possible(wanted, target, store, has_impl)
            layers = layers if allowed.by_name or not target.is_cuda else _worth_it(layers)
            if not layers:
                say("no product in 8 bits: no linear layer is fit for it")
                return {}
            budget = allowed.distance(value(layers[0].node).dtype)
            with store.pinned(target.device):
                chosen = self._decide(allowed, budget, Recorded(graph, layers, inputs, store, target.device), choices)
            if isinstance(chosen, str):
                say(f"no product in 8 bits: {chosen}")
                return {}
            taken = {layer.node: chosen.rotated[layer.name] for layer in layers if layer.name in chosen.rotated}
            if not taken:
                say(f"no product in 8 bits: each costs more than a result within {budget:.1e} of the exact one bears")
                return {}
            rotated = f", {sum(taken.values())} of them rotated" if any(taken.values()) else ""
            say(
                f"{len(taken)} of {len(candidates)} linear layers in 8 bits{rotated}, so that the result is within"
                f" {budget:.1e} of the exact one"
            )
            return taken

        return choose

    def _decide(self, allowed: Allowed, budget: float, call: Recorded, choices: Choices) -> _Decision | str:
        """The choice, or why there is none."""
        if (reason := self._refused.get(allowed)) is not None:
            return reason
        known = self._known.get(allowed)
        if known is not None:
            known.measured = False
            return known
        nodes = call.graph.nodes
        if any(map(is_cut, nodes)) or sum(map(is_input, nodes)) != len(call.inputs):
            return "other people's code runs inside, and there was no call without it yet, to measure"
        try:
            key = _key(call, budget, allowed)
            kept = None if allowed in self._distrusted else choices.get(key)
            decision = None if kept is None else _read(kept.impl, call.layers)
            if decision is None:
                rotated, distance = Probe(call).choose(budget)
                decision = _Decision(rotated, measured=True)
                found = distance if math.isfinite(distance) else 0.0
                choices.add([Choice(key, "eight_bits", 1, _written(rotated, call.layers), found)])
        except (WeightsElsewhere, ReferenceError):
            return "a part of the model is elsewhere"
        except torch.cuda.OutOfMemoryError:
            return "there is no memory to measure them in"
        self._known[allowed] = decision
        return decision


class SensitivityOfCall(NamedTuple):
    """What is known of a module's layers, and the tensors of a call to measure the rest with."""

    sensitivity: Sensitivity
    inputs: Sequence[torch.Tensor]


def _name(node: Node) -> str:
    """A layer's name in the module."""
    return str(named(node).weight.meta["source"].refs[0]).removesuffix(".weight")


def _possible(layers: list[Layer], target: Target, store: Store, has_impl: HasImpl) -> list[Layer]:
    """The layers whose weights are on the device, and that a kernel can compute in 8 bits (without CUDA, all)."""
    there = [
        layer
        for layer in layers
        if store.may_pack(Weight(named(layer.node).weight.meta["source"].refs, NUMBERS), target.device)
    ]
    return [layer for layer in there if _computed(layer, has_impl)] if target.is_cuda else there


def _worth_it(layers: list[Layer]) -> list[Layer]:
    """The layers that are faster in 8 bits."""
    together: dict[Node, int] = defaultdict(int)
    for layer in layers:
        together[named(layer.node).input] += layer.work
    found = []
    for layer in layers:
        x = named(layer.node).input
        rows = math.prod(shape(x)[:-1])
        if rows >= (4 * _FEW_ROWS if from_input(x) else _FEW_ROWS) and together[x] >= _LEAST_WORK:
            found.append(layer)
    return found


def _computed(layer: Layer, has_impl: HasImpl) -> bool:
    call = named(layer.node)
    x, weight = value(call.input), value(call.weight)
    numbers, scales = (
        weight.new_empty(size, dtype=dtype)
        for size, dtype in ((weight.shape, torch.int8), ((weight.shape[0], 1), torch.float32))
    )
    q, s = x.new_empty(x.shape, dtype=torch.int8), x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)
    bias = None if call.bias is None else value(call.bias)
    return has_impl(quantise, x, torch.int8, None, 0) and has_impl(
        scaled_linear, q, numbers, scales, bias, s, x.dtype, 0
    )


def _key(call: Recorded, budget: float, allowed: Allowed) -> str:
    """The key of a choice on disk: the layers, their weights, and what is allowed."""
    weights = [named(layer.node).weight for layer in call.layers]
    tensors = call.store.tensors([weight.meta["source"] for weight in weights], call.device)
    seen = torch.stack([number for tensor in tensors for number in (tensor[0, 0], tensor[-1, -1])]).tolist()
    facts = [
        _VERSION,
        budget,
        allowed,
        [(layer.name, tuple(shape(weight))) for layer, weight in zip(call.layers, weights, strict=True)],
        seen,
    ]
    return "eight_bits " + hashlib.sha256(repr(facts).encode()).hexdigest()[:32]


def _written(rotated: dict[str, bool], layers: list[Layer]) -> str:
    """A choice as text for disk, one letter for each layer: there may be a thousand."""
    return "".join(
        _OUT if layer.name not in rotated else _ROTATED if rotated[layer.name] else _PLAIN for layer in layers
    )


def _read(kept: str, layers: list[Layer]) -> _Decision | None:
    """A choice from disk; None where it is none."""
    if len(kept) != len(layers) or set(kept) - {_OUT, _PLAIN, _ROTATED}:
        return None
    return _Decision(
        {layer.name: letter == _ROTATED for layer, letter in zip(layers, kept, strict=True) if letter != _OUT}
    )
