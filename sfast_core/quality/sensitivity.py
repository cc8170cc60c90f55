"""Which linear layers of a model are computed in 8 bits: as many as its result bears, measured on the model itself and
the inputs of a real call.

The call's graph is run as it is and with layers rounded as products of 8 bits round. If all of them together stay
within the budget, all take part: two runs. Else each layer is measured by itself (its product's own error, plain and
rotated) and each kind of layers at the result; errors of roundings add as squares, so that those are left out that cost
most for what they save. The choice is measured before it is taken, and kept on disk.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch.fx import Graph, Node

from ..capture.autocast import autocast_off
from ..machine.choices import Choice, Choices
from ..ops.quantise import quantise
from ..ops.quantise.at_once import quantise_at_once
from ..ops.scaled_linear import scaled_linear
from ..rewrite.graph import is_input, named, shape, value
from ..rewrite.patterns import HasImpl, from_input
from ..runtime.any_store import Store
from ..runtime.instructions import Function, instructions_of
from ..runtime.segments import is_cut
from ..target import Target
from ..weights import Weight, WeightsElsewhere
from ..weights.eight_bits import NUMBERS, group_of
from .levels import Allowed

#: products of all layers that read one input: below, quantising it takes what the product saves (H100)
_LEAST_WORK = 2**32
_FEW_ROWS = 256  #: of a prompt: its projections become one product of 16 bits, which reads each weight once
_ROTATED_BELOW = 0.8  #: of its error, a layer's that is rotated has to be: rotating has its own price
_MARGIN = 0.9  #: of the budget, what is chosen by estimates may take
_TRIES = 5
_VERSION = 1
_OUT, _PLAIN, _ROTATED = "-pr"


@dataclass(frozen=True)
class _Layer:
    node: Node
    name: str
    work: int  #: multiplications

    @property
    def kind(self) -> str:
        """What layers at other depths have in common with it."""
        return re.sub(r"\d+", "#", self.name)


@dataclass
class _Decision:
    rotated: dict[str, bool] = field(default_factory=dict)  # the layers that take part
    measured: bool = False  # in this very call


class Sensitivity:
    """What is known of one compiled module's layers, for all its calls."""

    def __init__(self) -> None:
        self._known: dict[Allowed, _Decision] = {}
        self._distrusted: set[Allowed] = set()
        self._refused: dict[Allowed, str] = {}

    def over_budget(self, allowed: Allowed, why: str) -> None:
        """A program by the last decision is too far from the model: the next one measures anew, and where this one has,
        none is tried again.
        """
        known = self._known.pop(allowed, None)
        if known is not None and known.measured:
            self._refused[allowed] = why
        self._distrusted.add(allowed)

    def chooser(
        self,
        allowed: Allowed,
        inputs: Sequence[torch.Tensor],
        device: torch.device,
        store: Store,
        choices: Choices,
        target: Target,
        has_impl: HasImpl,
        say: Callable[[str], None],
    ) -> Callable[[Graph, Sequence[Node]], dict[Node, bool]]:
        """What decides for the layers of one call's graph.

        Args:
            allowed: by the user.
            inputs: the call's tensors.
            device: where it runs.
            store: the module's weights.
            choices: what is kept on disk.
            target: the device; without CUDA all is computed by what ops mean.
            has_impl: whether a kernel computes a call of an op.
            say: gets what was decided, a clause.
        """

        def choose(graph: Graph, candidates: Sequence[Node]) -> dict[Node, bool]:
            named_so = [_Layer(node, _name(node), value(node).numel() * shape(node.args[1])[1]) for node in candidates]  # type: ignore[arg-type]
            wanted = [layer for layer in named_so if allowed.layer(layer.name)]
            layers = _possible(wanted, target, store, device, has_impl)
            layers = layers if allowed.by_name or not target.is_cuda else _worth_it(layers)
            if not layers:
                say("no product in 8 bits: no linear layer is fit for it")
                return {}
            budget = allowed.distance(value(layers[0].node).dtype)
            with store.pinned(device):
                chosen = self._decide(allowed, budget, graph, layers, inputs, store, device, choices)
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

    def _decide(
        self,
        allowed: Allowed,
        budget: float,
        graph: Graph,
        layers: list[_Layer],
        inputs: Sequence[torch.Tensor],
        store: Store,
        device: torch.device,
        choices: Choices,
    ) -> _Decision | str:
        """The decision, or why there is none."""
        if (reason := self._refused.get(allowed)) is not None:
            return reason
        known = self._known.get(allowed)
        if known is not None:
            known.measured = False
            return known
        if any(is_cut(node) for node in graph.nodes) or sum(map(is_input, graph.nodes)) != len(inputs):
            return "code of others runs inside, and there was no call without it yet, to measure"
        try:
            key = _key(layers, budget, allowed, store, device)
            kept = None if allowed in self._distrusted else choices.get(key)
            decision = None if kept is None else _read(kept.impl, layers)
            if decision is None:
                probe = _Probe(graph, layers, inputs, store, device)
                rotated, distance = probe.choose(budget)
                decision = _Decision(rotated, measured=True)
                choices.add(
                    [
                        Choice(
                            key,
                            "eight_bits",
                            1,
                            _written(rotated, layers),
                            distance if math.isfinite(distance) else 0.0,
                        )
                    ]
                )
        except (WeightsElsewhere, ReferenceError):
            return "a part of the model is elsewhere"
        except torch.cuda.OutOfMemoryError:
            return "there is no memory to measure them in"
        self._known[allowed] = decision
        return decision


def _name(node: Node) -> str:
    """A layer's, as the module has it."""
    return str(named(node).weight.meta["source"].refs[0]).removesuffix(".weight")


def _possible(
    layers: list[_Layer], target: Target, store: Store, device: torch.device, has_impl: HasImpl
) -> list[_Layer]:
    """Those whose weights are there, and whose products a kernel computes in 8 bits; without CUDA that is what they
    mean.
    """
    there = [
        layer
        for layer in layers
        if store.may_pack(Weight(named(layer.node).weight.meta["source"].refs, NUMBERS), device)
    ]
    return [layer for layer in there if _computed(layer, has_impl)] if target.is_cuda else there


def _worth_it(layers: list[_Layer]) -> list[_Layer]:
    """Those whose products take less time so."""
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


def _computed(layer: _Layer, has_impl: HasImpl) -> bool:
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


def _key(layers: list[_Layer], budget: float, allowed: Allowed, store: Store, device: torch.device) -> str:
    """Of a choice that is kept: which layers, of which weights, and what is allowed."""
    weights = [named(layer.node).weight for layer in layers]
    tensors = store.tensors([weight.meta["source"] for weight in weights], device)
    seen = torch.stack([number for tensor in tensors for number in (tensor[0, 0], tensor[-1, -1])]).tolist()
    facts = [
        _VERSION,
        budget,
        allowed,
        [(layer.name, tuple(shape(weight))) for layer, weight in zip(layers, weights, strict=True)],
        seen,
    ]
    return "eight_bits " + hashlib.sha256(repr(facts).encode()).hexdigest()[:32]


def _written(rotated: dict[str, bool], layers: list[_Layer]) -> str:
    """A choice for disk, a letter for each layer: there may be a thousand of them."""
    return "".join(
        _OUT if layer.name not in rotated else _ROTATED if rotated[layer.name] else _PLAIN for layer in layers
    )


def _read(kept: str, layers: list[_Layer]) -> _Decision | None:
    """A choice from disk; None where it is none."""
    if len(kept) != len(layers) or set(kept) - {_OUT, _PLAIN, _ROTATED}:
        return None
    return _Decision(
        {layer.name: letter == _ROTATED for layer, letter in zip(layers, kept, strict=True) if letter != _OUT}
    )


# -- measuring -----------------------------------------------------------------------------------------------------


class _Switch:
    """In a layer's place: computes it as it is, rounded, or as it is and notes what rounding would cost."""

    def __init__(self, layer: _Layer) -> None:
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
    """What a product of 8 bits computes, by one of x's dtype: its numbers are exact in that, and their 128ths sum up
    within float16's range.
    """
    (qx, sx), (qw, sw) = quantise_at_once(x, group), quantise_at_once(weight, group)
    total = F.linear(qx.to(x.dtype) / 128, qw.to(x.dtype) / 128).float() * (sx * sw.reshape(-1) * 128**2)
    return (total if bias is None else total + bias.float()).to(x.dtype)


class _Probe:
    """A graph that can be run with some of its layers rounded."""

    def __init__(
        self, graph: Graph, layers: list[_Layer], inputs: Sequence[torch.Tensor], store: Store, device: torch.device
    ) -> None:
        self._layers = layers
        self._switches = {layer.node: _Switch(layer) for layer in layers}
        places = {node: index for index, node in enumerate(graph.nodes)}
        instructions, outputs = instructions_of(graph, places)
        at = {places[node]: switch for node, switch in self._switches.items()}
        instructions = [each._replace(function=at.get(each.result, each.function)) for each in instructions]
        given = [node for node in graph.nodes if node.op == "placeholder"]
        self._function = Function(instructions, [places[node] for node in given], outputs, len(places))
        weights = [node for node in given if "source" in node.meta]
        of_weights, of_call = iter(store.tensors([node.meta["source"] for node in weights], device)), iter(inputs)
        self._arguments = [
            (
                next(of_weights)
                if "source" in node.meta
                else node.meta["constant"]
                if "constant" in node.meta
                else next(of_call)
            )
            for node in given
        ]
        self._exact = self._run({})

    def choose(self, budget: float) -> tuple[dict[str, bool], float]:
        """The layers that take part, by name, with whether each is rotated; and how far the result is then."""
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

    def _costs(self, everything: dict[_Layer, bool], errors: dict[_Layer, tuple[float, float]]) -> dict[_Layer, float]:
        """The square of what each layer adds to the result's distance: its kind's, measured, in the proportion of the
        layers' own errors.
        """
        kinds: dict[str, list[_Layer]] = defaultdict(list)
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

    def _errors(self) -> dict[_Layer, tuple[float, float]]:
        """The square of each product's own relative error, plain and rotated."""
        self._run({}, measuring=True)
        measured = (
            torch.stack([torch.stack(self._switches[layer.node].errors) for layer in self._layers]).double().tolist()
        )
        return {
            layer: (plain / (size or 1.0), rotated / (size or 1.0))
            for layer, (plain, rotated, size) in zip(self._layers, measured, strict=True)
        }

    def _distance(self, rounded: dict[_Layer, bool]) -> float:
        """The largest relative L2 distance of a result, with these layers rounded."""
        return max(
            (_apart(mine, theirs) for mine, theirs in zip(self._run(rounded), self._exact, strict=True)), default=0.0
        )

    def _run(self, rounded: dict[_Layer, bool], measuring: bool = False) -> list[torch.Tensor]:
        for layer in self._layers:
            switch = self._switches[layer.node]
            switch.rounded, switch.rotated, switch.measuring = layer in rounded, rounded.get(layer, False), measuring
        with torch.inference_mode(False), torch.no_grad(), autocast_off():
            return [result.clone() for result in self._function(*self._arguments) if isinstance(result, torch.Tensor)]


def _by_name(layers: dict[_Layer, bool]) -> dict[str, bool]:
    return {layer.name: rotated for layer, rotated in layers.items()}


def _apart(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    if not theirs.is_floating_point():
        return 0.0 if torch.equal(mine, theirs) else math.inf
    size = theirs.float().norm().item()
    distance = (mine.float() - theirs.float()).norm().item()
    found = distance / size if size else distance
    return found if math.isfinite(found) else math.inf
