"""Steps of a sampling that use the deep part of an earlier one: within a budget that is measured, where it is known
that a sampling goes on, and said.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfast_core import CompileConfig, CompiledModule, compile
from sfast_core.quality.reuse import Reuse
from sfast_core.rewrite.deep_part import Cut, cut_deep
from sfast_core.runtime.graphs import DeviceGraphs
from tests.models import Forward
from tests.tracing import evaluate, trace

STEPS = 12
NOISE, GOAL = torch.randn(2, 2, 4, 8, 8, generator=torch.Generator().manual_seed(0))  # in whatever order files are read


class Net(nn.Module):
    """A UNet of two levels: the lower one is most of the work and changes little from step to step."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.down, self.last = (
            nn.Conv2d(4, 8, 3, padding=1),
            nn.Conv2d(8, 16, 3, 2, 1),
            nn.Conv2d(16, 4, 3, padding=1),
        )
        self.middle = nn.Sequential(*(nn.Conv2d(16, 16, 3, padding=1) for _ in range(8)))
        self.up = nn.Conv2d(16, 8, 3, padding=1)
        self.eval().requires_grad_(False)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        high = self.first(x) * t
        low = self.up(F.interpolate(self.middle(self.down(high)), scale_factor=2.0))
        return self.last(torch.cat([low, high], 1))


class Blocks(nn.Module):
    """A transformer of pictures as tokens: what its later blocks add changes little from step to step."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 16), nn.Linear(16, 4)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for _ in range(8)
        )
        self.eval().requires_grad_(False)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        tokens = self.first(x.flatten(2).transpose(1, 2)) * t
        for block in self.blocks:
            tokens = tokens + 0.3 * block(tokens)
        return self.last(tokens).transpose(1, 2).reshape(x.shape)


def step(index: int) -> tuple[torch.Tensor, torch.Tensor]:
    return NOISE + (GOAL - NOISE) * index / STEPS, torch.tensor(1.0 - 0.02 * index)


def compiled(net: nn.Module, **config: Any) -> CompiledModule:
    return compile(net, CompileConfig(allow_cpu=True, **{"quality": "fast", "quality_parts": ("reuse",), **config}))


def sampled(handle: CompiledModule, steps: int | None = STEPS) -> list[float]:
    """How far each step's result is from the model's own."""
    found = []
    with torch.no_grad(), handle.sampling(steps):
        for index in range(STEPS):
            expected = type(handle.module).forward(handle.module, *step(index))
            found.append(((handle(*step(index)) - expected).norm() / expected.norm()).item())
    return found


def test_a_graph_is_cut_in_two() -> None:
    net = Net()
    expected = net(*step(3))
    cut = cut_deep(trace(net, *step(0)).graph)
    assert isinstance(cut, Cut) and 0.5 < cut.share < 0.95
    result, deep = evaluate(cut.whole, step(3))
    (again,) = evaluate(cut.shallow, [*step(3), deep])
    torch.testing.assert_close(result, expected)
    assert torch.equal(again, result) and deep.shape == (2, 8, 8, 8)
    names = {str(node.meta["source"].refs[0]) for node in cut.shallow.nodes if "source" in node.meta}
    assert names == {"first.weight", "first.bias", "last.weight", "last.bias"}


def test_of_a_transformer_the_first_block_stays() -> None:
    net = Blocks()
    expected = net(*step(3))
    cut = cut_deep(trace(net, *step(0)).graph)
    assert isinstance(cut, Cut) and 0.7 < cut.share < 0.9
    result, rest = evaluate(cut.whole, step(3))
    (again,) = evaluate(cut.shallow, [*step(3), rest])
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(again, result)
    names = {str(node.meta["source"].refs[0]).rpartition(".")[0] for node in cut.shallow.nodes if "source" in node.meta}
    assert names == {"first", "last", "blocks.0.0", "blocks.0.1", "blocks.0.3"}


def test_without_a_deep_part_there_is_no_cut() -> None:
    net = Forward(lambda net, x: net.b(net.a(x)), a=nn.Conv2d(4, 4, 1), b=nn.Conv2d(4, 4, 1))
    assert cut_deep(trace(net, NOISE).graph) == "there is no deep part that could be used again"
    joined = Forward(lambda net, x: net.a(torch.cat([x * 2, x], 1)), a=nn.Conv2d(8, 4, 3))
    assert isinstance(cut_deep(trace(joined, NOISE).graph), str)


def test_what_is_added_deep_inside_is_not_followed() -> None:
    class Controlled(Net):
        def forward(self, x: torch.Tensor, t: torch.Tensor, control: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            high = self.first(x) * t
            return self.last(
                torch.cat([self.up(F.interpolate(self.middle(self.down(high)) + control, scale_factor=2.0)), high], 1)
            )

    found = cut_deep(trace(Controlled(), *step(0), torch.randn(2, 16, 4, 4)).graph)
    assert found == "something is added deep inside at each call, as a ControlNet does"


@pytest.mark.parametrize("make", [Net, Blocks])
@pytest.mark.parametrize("captured", [True, False])
def test_steps_use_what_others_computed_within_the_budget(
    graphs: DeviceGraphs, captured: bool, make: type[nn.Module]
) -> None:
    handle = compiled(make(), quality_budget=0.2, cuda_graphs=captured)
    for _ in range(2):
        apart = sampled(handle)
        assert max(apart) < 0.3 and sum(distance < 1e-5 for distance in apart) >= 3
    (signature,) = handle.engine.report.signatures
    assert 6 <= signature.reused < 20 and signature.calls == 2 * STEPS and handle.engine.report.calls["traced"] == 1
    assert sum(handle.engine.report.calls.values()) == 2 * STEPS
    assert f"{signature.reused} calls of {signature.calls} used the deep part" in handle.report().text()
    assert graphs.captures == (2 if captured else 0)
    handle.engine.release_graphs()
    assert max(sampled(handle)) < 0.3
    handle.uninstall()
    assert not graphs.bytes


@pytest.mark.parametrize(
    ("steps", "config", "why"),
    [
        (8, {}, "a sampling of 8 steps is too short"),
        (None, {}, "nobody says when a sampling begins"),
        (STEPS, {"quality_parts": None}, ""),
        (STEPS, {"quality_budget": 1e-4}, ""),
    ],
)
def test_where_no_step_does(graphs: DeviceGraphs, steps: int | None, config: dict[str, Any], why: str) -> None:
    """In short samplings, where nobody says how long it is, where it isn't asked for by name,
    where it costs too much.
    """
    handle = compiled(
        Net(),
        **{"quality_budget": 0.2, **config, **({"quality_layers": ("none",)} if "quality_parts" in config else {})},
    )
    assert max(sampled(handle, steps)) < 1e-4 and handle.engine.report.signatures[0].reused == 0
    assert why in "".join(handle.engine.report.signatures[0].lossy)


def test_a_model_without_a_deep_part_says_so(graphs: DeviceGraphs) -> None:
    handle = compiled(Forward(lambda net, x, t: net.a(x) * t, a=nn.Conv2d(4, 4, 1)))
    assert max(sampled(handle)) < 1e-5 and "there is no deep part that could be used again" in handle.report().text()


def test_parts_of_a_prompt_are_told_apart_by_what_they_cost() -> None:
    reuse = Reuse(0.1)
    reuse.measured(0.04)
    assert reuse.left == 2
    reuse.used()
    reuse.used()
    assert (reuse.left, reuse.age) == (0, 2)
    reuse.measured(0.33)  # 0.11 a step
    assert (reuse.left, reuse.age) == (0, 0)
    reuse.measured(float("nan"))
    assert reuse.left == 0
    reuse.measured(0.0)
    assert reuse.left == 3
