"""Networks of others beside the model, whose layers functions of theirs call: recorded with it, each layer's weights
told from every other's.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core.capture import Recorder, in_place_of
from sfast_core.lowering import lower
from tests.taken_in import Host


def handed_over(layer: nn.Linear, dtype: torch.dtype) -> list[torch.Tensor]:
    return [layer.weight.to(dtype), layer.bias.to(dtype)]


class Casting(nn.Linear):
    """As ComfyUI's: another function hands its weights over, which says whose they are while a call is recorded."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, *handed_over(self, x.dtype))


@contextmanager
def told(recorder: Recorder) -> Iterator[None]:
    def bound(original: Any, layer: nn.Linear, dtype: torch.dtype) -> Any:
        if recorder.in_leaf:
            return original(layer, dtype)
        with recorder.paused():
            found = original(layer, dtype)
        for name, tensor in zip(("weight", "bias"), found, strict=True):
            recorder.bind_weight(tensor, layer, name)
        return found

    with in_place_of(sys.modules[__name__], "handed_over", bound):
        yield


class Network:
    """Three layers in a row, for the values of attention.

    Args:
        kind: of the layers.
        dtype: that their weights are kept in.
    """

    def __init__(self, kind: type[nn.Linear], dtype: torch.dtype = torch.float32, seed: int = 1) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.net = nn.Sequential(*(kind(8, 8) for _ in range(3))).requires_grad_(False)
        for tensor in self.net.parameters():
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
        self.net.to(dtype)

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> Any:
        dtype = next(self.net.parameters()).dtype  # as USO's: before the layer has said whose weight that is
        return q, k, self.net(v) if dtype.is_floating_point else v


def _patched(network: Network) -> dict[str, Any]:
    return {"patches": {"attn": [network]}}


@pytest.mark.parametrize(
    ("kind", "dtype"), [(nn.Linear, torch.float32), (Casting, torch.float32), (Casting, torch.float16)]
)
def test_it_is_recorded_with_the_model(kind: type[nn.Linear], dtype: torch.dtype) -> None:
    """Its weights as they are at each call; another network is another trace."""
    host = Host()
    host.engine.tracer._leaf_scope = told
    networks = [(Network(kind, dtype, seed), Network(kind, dtype, seed)) for seed in (1, 2)]
    for mine, theirs in networks:
        sides = iter((mine, theirs))

        def make(sides: Iterator[Network] = sides) -> Any:
            given = _patched(next(sides))
            return lambda step: given

        assert host.check(make, 3) == {"traced": 1, "fused": 2} and host.last == (1, 0), host.engine.report.text()
    mine, _ = networks[1]
    given, x = _patched(mine), torch.randn(2, 4, 8)
    options = {"cond_or_uncond": [0, 1], "sigmas": torch.full((2,), 20.0), **given}
    for layer in mine.net:  # as a host loads it again
        layer.weight = nn.Parameter(torch.randn(8, 8).to(dtype), requires_grad=False)
        result = host(x.clone(), options)
        with torch.inference_mode():
            torch.testing.assert_close(result, host._forward(x, options), rtol=1e-4, atol=1e-5)
    assert host.engine.report.calls == {"traced": 2, "fused": 7}


def test_each_layers_weights_have_a_name_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """By which the store knows how they lie, and what was made of them."""
    named: list[Any] = []
    host = Host()

    def noting(trace: Any, *more: Any) -> Any:
        sources = [node.meta["source"] for node in trace.graph.nodes if "source" in node.meta]
        named.extend(ref for source in sources for ref in source.refs)
        return lower(trace, *more)

    monkeypatch.setattr("sfast_core.engine.lower", noting)
    for seed in (1, 2):
        given = _patched(Network(nn.Linear, seed=seed))
        host.check(lambda given=given: lambda step: given, 2)
    beside = [ref for ref in named if ref.path.startswith("<Linear")]
    assert len(beside) == 12 == len(set(beside)), beside


def test_a_layer_that_nobody_can_find_again_runs_live() -> None:
    """It is made in the call."""
    host = Host()
    host.engine.tracer._leaf_scope = told
    kept = nn.Linear(8, 8).requires_grad_(False)

    def patch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> Any:
        made = Casting(8, 8, device="meta")
        made._parameters.update(kept._parameters)
        return q, k, made(v)

    given = {"patches": {"attn": [patch]}}
    found = host.check(lambda: lambda step: given, 6)
    assert found["fused"] >= 4, host.engine.report.text()
