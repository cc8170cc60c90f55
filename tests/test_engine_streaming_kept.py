"""Weights that are away and whose copies stay on the device for the length of a sampling, on a CPU as in
``test_engine_streaming``.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sfast_core.runtime.graph_lifetimes import ENOUGH_CALLS
from sfast_core.runtime.graphs import DeviceGraphs
from sfast_core.runtime.streaming.kept import KeptWeights
from sfast_core.weights import Held
from tests.models import UNet
from tests.streaming import part_of
from tests.test_engine_streaming import _copies, calls, check, offloading, unet

__all__ = ["_copies"]  # a fixture
BUDGET = 1 << 20


def kept(graphs: DeviceGraphs) -> list[KeptWeights]:
    return [each for each in graphs._graphs.values() if isinstance(each, KeptWeights)]


@pytest.mark.parametrize("budget", [0, 60_000, 1 << 17, 1 << 30])
def test_what_is_kept_is_not_moved_and_stays_within_the_budget(graphs: DeviceGraphs, budget: int) -> None:
    net, inputs = unet(), UNet.inputs()
    expected = offloading(unet())[0](*inputs)
    handle, offload = offloading(net, "", stream_budget_bytes=budget)
    moved = []
    for sampling in (False, True, True, False):
        offload.begin() if sampling else offload.end()
        for _ in range(ENOUGH_CALLS):
            assert torch.equal(handle(*inputs), expected)
        moved.append(handle.engine.report.signatures[0].streamed_bytes)
        held, report = sum(each.bytes for each in kept(graphs)), handle.engine.report.signatures[0]
        assert report.kept_bytes == held and ("stay there" in report.stream_lines()[0]) == bool(held)
        assert held <= budget // 2 and bool(held) == (sampling and moved[0] > moved[-1])
    assert (
        moved[0] == moved[3] >= moved[1] == moved[2] and calls(handle)["replayed"] >= 9 and "eager" not in calls(handle)
    )
    assert moved[1] == moved[0] if budget <= 60_000 else moved[1] < moved[0]
    assert moved[1] == 0 if budget == 1 << 30 else moved[1] > 0
    offload.begin()
    handle(*inputs)
    handle.engine.release_graphs()
    assert not kept(graphs), "it goes with the last graph that reads it"


def test_what_is_written_between_samplings_is_read_in_the_next(graphs: DeviceGraphs) -> None:
    """By whatever is written, in the memory that it had: nothing but the host tells."""
    net = unet()
    handle, offload = offloading(net, *part_of(net, 0.8), stream_budget_bytes=BUDGET)
    offload.begin()
    for _ in range(3):
        check(handle)
    captures = handle.engine.report.signatures[0].captures
    for _ in range(2):
        offload.begin()
        for tensor in net.parameters():
            tensor.data.mul_(0.9)
        for _ in range(3):
            check(handle)
    assert handle.engine.report.signatures[0].captures == captures and kept(graphs)[0].bytes
    offload.end()
    for _ in range(3):
        for tensor in net.parameters():
            tensor.data.mul_(0.9)
        check(handle)
    assert "eager" not in calls(handle) and not kept(graphs)


def test_what_becomes_another_tensor_or_is_computed_otherwise_is_copied_anew(graphs: DeviceGraphs) -> None:
    net = unet()
    handle, offload = offloading(net, "", stream_budget_bytes=BUDGET)
    offload.held = lambda functions, device: tuple(map(Held, functions))  # type: ignore[method-assign]
    offload.begin()
    for _ in range(3):
        check(handle)
    net.res1.conv1.weight.data = net.res1.conv1.weight.data * 0.5
    check(handle)
    inputs, other = UNet.inputs(), unet()
    other.load_state_dict(net.state_dict())
    other.conv_out.bias.data.mul_(2)
    offload.computed = {"conv_out.bias": (lambda weight: weight.mul_(2),)}
    for _ in range(2):
        assert torch.equal(handle(*inputs), offloading(other)[0](*inputs))
    offload.computed = {}
    offload.names = part_of(net, 0.5)
    for _ in range(3):
        check(handle)
    assert calls(handle)["traced"] == 1 and "eager" not in calls(handle)


def test_signatures_share_what_is_kept(graphs: DeviceGraphs) -> None:
    net = unet()
    handle, offload = offloading(net, "", stream_budget_bytes=1 << 30)
    offload.begin()
    seen = set()
    for size in (8, 16, 8, 16, 8):
        check(handle, *UNet.inputs(size=size))
        seen |= {each.bytes for each in kept(graphs)}
    assert len(kept(graphs)) == 1 and len(seen) == 1
    offload.begin()
    for tensor in net.parameters():
        tensor.data.mul_(0.9)
    for size in (16, 8, 16):
        check(handle, *UNet.inputs(size=size))
    assert handle.engine.report.signatures[0].captures == 1


def test_taken_away_it_is_copied_again(graphs: DeviceGraphs) -> None:
    net = unet()
    handle, offload = offloading(net, "", stream_budget_bytes=BUDGET)
    offload.begin()
    for _ in range(3):
        check(handle)
    assert graphs.release_all() and not kept(graphs)
    for _ in range(3):
        check(handle)
    graphs.release(kept(graphs)[0])
    for _ in range(3):
        check(handle)
    assert len(kept(graphs)) == 1 and "eager" not in calls(handle)
    del handle, net, offload


def test_what_the_ring_would_be_too_large_for_stays(graphs: DeviceGraphs) -> None:
    """One weight as large as all others together: within the budget there is room for it once, and for the others on
    their way.
    """
    torch.manual_seed(0)
    layers = nn.ModuleList(
        [nn.Linear(64, 1024, bias=False), nn.Linear(1024, 64, bias=False), *(nn.Linear(64, 64) for _ in range(12))]
    )
    net = nn.Sequential(*layers)
    large, budget = 64 * 1024 * 4, 3 * 64 * 1024 * 4 // 2
    handle, offload = offloading(net, *(f"{index}." for index in range(14) if index != 1), stream_budget_bytes=budget)
    for _ in range(3):
        check(handle, torch.randn(2, 64))
    alone = handle.engine.report.signatures[0]
    assert alone.ring_bytes > budget // 2 and alone.kept_bytes == 0
    offload.begin()
    for _ in range(3):
        check(handle, torch.randn(2, 64))
    inside = handle.engine.report.signatures[0]
    assert inside.kept_bytes >= large and inside.kept_bytes + inside.ring_bytes <= budget and inside.streamed_bytes > 0
    assert graphs.ring_bytes == inside.ring_bytes, "the larger one is given back"
    assert "eager" not in calls(handle)
