"""Models of which a part isn't on the device, with other people's code between their segments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from sfast_core.runtime.graphs import DeviceGraphs
from sfast_core.runtime.streaming.copier import Copier
from tests.capturing import pretend_graphs
from tests.live import Host, Net
from tests.streaming import LateCopier, PretendOffload, part_of

Options = Callable[[], dict[str, Any]]


@pytest.fixture(params=[Copier, LateCopier], autouse=True)
def graphs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[DeviceGraphs]:
    make = request.param
    monkeypatch.setattr(
        "sfast_core.programs.streams.copier_for", lambda device: make() if make is Copier else make(device)
    )
    yield pretend_graphs(monkeypatch)


def host(part: float, blocks: int = 4, **config: Any) -> tuple[Host, PretendOffload]:
    found = Host(Net(blocks), stream_budget_bytes=0, **config)
    offload = PretendOffload(*part_of(found.net, part))
    found.engine.store._offload = offload  # type: ignore[attr-defined]
    return found, offload


def between() -> dict[str, Any]:
    return {"between": [lambda x, skip, options: (x * (1 + 0.1 * options["step"]), skip - options["block"])]}


def in_their_place() -> dict[str, Any]:
    """One calls the block itself, twice, one not at all."""

    def twice(args: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
        first = extra["original_block"](args)
        return {"x": first["x"] + extra["original_block"]({**args, "x": first["x"] * 0.5})["x"]}

    return {"replace": {1: twice, 2: lambda args, extra: {"x": args["x"] * 2}}}


def drawing() -> dict[str, Any]:
    """Not to be run twice: the proof doesn't."""
    return {"after": [lambda x, options: x + 0.1 * torch.randn_like(x)]}


@pytest.mark.parametrize("make", [between, in_their_place, drawing])
@pytest.mark.parametrize("part", [0.5, 1.0])
def test_segments_stream(graphs: DeviceGraphs, make: Options, part: float) -> None:
    found, _ = host(part)
    found.check(make, calls=6)
    (report,) = found.engine.report.signatures
    assert found.calls["replayed"] >= 4 and "eager" not in found.calls, found.engine.report.reasons
    assert report.streamed_bytes and report.ring_bytes and report.captures == 1
    assert report.stream_lines()


def test_another_part_each_time(graphs: DeviceGraphs) -> None:
    found, offload = host(0.0)
    for part in (0.0, 0.6, 0.3, 1.0, 0.0, 0.5):
        offload.names = part_of(found.net, part)
        for parameter in found.net.parameters():
            parameter.data = parameter.data.clone()
        found.check(in_their_place, calls=3)
    assert found.calls["traced"] == 1 and "eager" not in found.calls, found.engine.report.reasons


def test_a_view_of_a_weight_that_a_later_segment_reads(graphs: DeviceGraphs) -> None:
    """It isn't left in the ring, where the next segment's weights come."""

    class Viewing(Net):
        def forward(self, x: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
            early = self.out.weight.t()
            return super().forward(x, options) @ early

    found = Host(Viewing(4), stream_budget_bytes=0)
    found.engine.store._offload = PretendOffload("")  # type: ignore[attr-defined]
    found.check(between, calls=5)
    assert found.calls["replayed"] >= 3 and "eager" not in found.calls


def test_the_ring_goes_between_two_calls(graphs: DeviceGraphs) -> None:
    found, _ = host(1.0)
    found.check(between, calls=3)
    graphs.release_all()
    found.check(between, calls=3)
    assert "eager" not in found.calls and found.engine.report.signatures[0].captures == 2


def test_the_ring_stays_when_live_code_asks_for_memory(graphs: DeviceGraphs) -> None:
    """As a host does that loads a model there. What the next segment's graph writes its weights to would be
    another's.
    """
    gone = []

    def asking(x: torch.Tensor, skip: torch.Tensor, options: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        if any(each.busy for each in graphs._graphs.values()):  # not beside the plain model
            graphs.evict(1 << 40)
            gone.append(not graphs.ring_bytes)
        return x * 1.5, skip

    found, _ = host(1.0)
    found.check(lambda: {"between": [asking]}, calls=5)
    assert found.calls["replayed"] >= 3 and found.engine.report.signatures[0].captures == 1, found.calls
    assert len(gone) > 4 and not any(gone)


def test_what_the_host_computes_of_weights(graphs: DeviceGraphs) -> None:
    found, offload = host(0.5)
    found.check(between, calls=3)
    name = "blocks.1.up.weight"
    weight = found.net.get_parameter(name).data.clone()
    offload.computed = {name: (lambda each: each * 3,)}
    x = torch.randn(2, 5, 8)
    for _ in range(3):
        mine = found(x, step=1, sigma=torch.ones(()), **between())
        found.net.get_parameter(name).data.copy_(weight * 3)
        theirs = found.eager(x, step=1, **between())
        found.net.get_parameter(name).data.copy_(weight)
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    assert "eager" not in found.calls and found.calls["fused"] == 3
