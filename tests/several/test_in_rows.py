"""One image on several devices, cut along its tokens; all of them pretended by a CPU, each with its own copy of the weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core import CompileConfig, CompiledModule, compile
from sfast_core.runtime.graphs import DeviceGraphs
from sfast_core.runtime.tuner import REFERENCE
from tests.fakes import FakeBackend
from tests.sharding.transformers import ALL, FluxLike


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.no_grad():
        yield


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> DeviceGraphs:
    """The CPU's, which captures nothing and counts."""
    found = DeviceGraphs(FakeBackend())
    monkeypatch.setattr("sfast_core.engine.device_graphs", lambda device: found)
    monkeypatch.setattr("sfast_core.lowering._why_not_capturable", lambda graph, device: None)
    monkeypatch.setattr(
        "sfast_core.lowering.Tuner.decide", lambda tuner, jobs: [next(iter(job.impls), REFERENCE) for job in jobs]
    )
    return found


def compiled(net: nn.Module, count: int = 2, **more: Any) -> CompiledModule:
    return compile(net.eval(), CompileConfig(allow_cpu=True, devices=("cpu",) * count, **more))


def check(handle: CompiledModule, *args: Any) -> torch.Tensor:
    got: torch.Tensor = handle(*args)
    torch.testing.assert_close(got, type(handle.module).forward(handle.module, *args), rtol=1e-4, atol=1e-5)
    return got


def lines(handle: CompiledModule) -> str:
    return "\n".join(handle.engine.report.several)


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("kind", ALL)
def test_one_image_is_computed_in_rows(kind: Any, count: int) -> None:
    handle, inputs = compiled(kind(), count), kind.inputs()
    with handle.sampling():
        first = check(handle, *inputs)
        for _ in range(3):
            assert torch.equal(handle(*inputs), first)
        check(handle, *kind.inputs())
    assert f"one at a time is computed in rows: {inputs[0].shape[-1] ** 2}" or lines(handle)
    print(lines(handle))
    assert "in rows" in lines(handle)
    assert handle.engine.report.calls == {"traced": 1, "fused": 4} and not handle.engine.report.reasons


def test_graphs_replay_the_stretches(graphs: DeviceGraphs) -> None:
    handle = compiled(FluxLike(), 2)
    with handle.sampling():
        for _ in range(5):
            check(handle, *FluxLike.inputs())
    print(handle.report().text())
    assert "in rows" in lines(handle)
    assert handle.engine.report.calls == {"traced": 1, "replayed": 4}
