"""A fused graph that can be run: tensors in, tensors out, with the strides that the original forward gives them."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from ..capture.autocast import autocast_off
from ..capture.live import Form
from ..weights import Arrival, Arriving, Weight
from .instructions import Function
from .segments import Body, Stretch

Run = Callable[..., Sequence[torch.Tensor]]


@dataclass(frozen=True)
class Program:
    """A rewritten, lowered graph.

    Attributes:
        run: called with the call's tensors, then the weights, then the constants. Not used where the graph is ``cut``.
        weights: what it reads of the module, in order.
        constants: tensors that depend on nothing.
        forms: of the results, as the original forward returned them.
        capturable: None where it can be captured into a CUDA graph, else the reason why it can't.
        owners: of tensors that it reads as weights though no module has them; held to keep these alive.
        arrivals: for each weight, what to do if it has to be copied to the device first. Empty: none may be.
        cut: the same graph, cut where live code runs; None where there is no live code.
        kept_results: the indices of results that the program puts into memory of their own, in their forms.
        rounded: the dtype of the layers that it computes in 8 bits though the recorded call doesn't; None where there
            are none.
        in_place: result index → input index, for results that are written into an input and are that very tensor.
    """

    run: Run
    weights: tuple[Weight, ...]
    constants: tuple[torch.Tensor, ...]
    forms: tuple[Form, ...]
    capturable: str | None = None
    owners: tuple[object, ...] = ()
    arrivals: tuple[Arrival, ...] = ()
    cut: Body | None = None
    kept_results: frozenset[int] = frozenset()
    rounded: torch.dtype | None = None
    in_place: Mapping[int, int] = field(default_factory=dict)

    def __call__(self, inputs: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Compute the results. They may share memory with inputs; :meth:`deliver` makes them the caller's own."""
        with torch.no_grad(), autocast_off():
            return list(self.run(*inputs, *weights, *self.constants))

    def parameters_for(self, weights: Sequence[torch.Tensor | Arriving]) -> list[torch.Tensor | None]:
        """Its weights and constants; None where a weight has to be brought."""
        return [*(None if isinstance(weight, Arriving) else weight for weight in weights), *self.constants]

    @cached_property
    def body(self) -> Body:
        """The graph in stretches of instructions: a single one where there is no live code."""
        if self.cut is not None:
            return self.cut
        function = self.run
        assert isinstance(function, Function)
        count = len(self.weights) + len(self.constants)
        end = len(function.given) - count
        outputs = tuple(function.outputs)
        stretch = Stretch(list(function.instructions), tuple(function.given[end:]), outputs)
        indices = tuple((place, index) for index, place in enumerate(function.given[end:]))
        return Body(function.size, tuple(function.given[:end]), indices, [stretch], outputs)

    def deliver(self, results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copies of the results in eager's forms, so that no memory of ours leaves; an input stays that input."""
        return self._copied(results, self.in_place)

    def hand_over(self, results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """As :meth:`deliver` for a run outside of a graph: results in memory of their own needn't be copied."""
        return self._copied(results, {*self.kept_results, *self.in_place})

    def _copied(self, results: Sequence[torch.Tensor], but: Container[int]) -> list[torch.Tensor]:
        return [
            result
            if index in but
            else torch.empty_strided(form.shape, form.stride, dtype=form.dtype, device=form.device).copy_(result)
            for index, (form, result) in enumerate(zip(self.forms, results, strict=True))
        ]
