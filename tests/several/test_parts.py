"""What a call on several devices is made of: devices, spans, cut arguments, a recorded call for another device."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core import CompileConfig
from sfast_core.hosts.held import Held
from sfast_core.several.batch import cut, joined, patterns, sent, spans, spoilt
from sfast_core.several.devices import devices_for
from sfast_core.several.retarget import retargeted
from tests.models import Forward
from tests.tracing import trace as trace_of

CPU, META = torch.device("cpu"), torch.device("meta")


def cuda(index: int) -> torch.device:
    return torch.device("cuda", index)


@pytest.fixture
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three alike, but for a little memory, and a smaller one."""
    sizes = [80 << 30, (80 << 30) - (1 << 30), 24 << 30, 80 << 30]
    gpus = [SimpleNamespace(major=9, minor=0, total_memory=size) for size in sizes]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(gpus))
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: gpus[device if isinstance(device, int) else device.index]
    )


@pytest.mark.parametrize(
    ("wanted", "home", "found"),
    [
        ("all", 0, [0, 1, 3]),
        ("all", 3, [3, 0, 1]),
        (2, 0, [0, 1]),
        (9, 0, [0, 1, 3]),
        (1, 0, [0]),
        (("cuda:2", "cuda:0"), 0, [0, 2]),
        (("cuda:7", "cpu"), 0, [0]),
    ],
)
def test_the_devices_that_are_meant(four_gpus: None, wanted: Any, home: int, found: list[int]) -> None:
    assert devices_for(wanted, cuda(home)) == [cuda(index) for index in found]


def test_on_a_cpu_there_are_others_by_name_alone() -> None:
    assert devices_for("all", CPU) == devices_for(4, CPU) == [CPU] and devices_for(("cpu", "cpu"), CPU) == [CPU, CPU]


@pytest.mark.parametrize("good", ["all", 1, 8, "cuda:1", ("cuda:0", "cuda:1"), [torch.device("cuda", 1)], None])
def test_devices_that_can_be_named(good: Any) -> None:
    config = CompileConfig(devices=good)
    assert config == CompileConfig(devices=config.devices) and hash(config)


@pytest.mark.parametrize("bad", [0, -1, True, 1.5, "none", (), ("cuda:0", "gpu")])
def test_devices_that_can_not(bad: Any) -> None:
    with pytest.raises(ValueError, match=r"CompileConfig\.devices: got .*, needs \"all\", a number"):
        CompileConfig(devices=bad)


def test_spans_differ_by_one_at_most() -> None:
    assert (
        spans(5, 3) == [(0, 2), (2, 4), (4, 5)] and spans(2, 8) == [(0, 1), (1, 2)] and spans(4, 2) == [(0, 2), (2, 4)]
    )


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8])
def test_each_is_left_whole_while_any_other_is_spoilt(count: int) -> None:
    runs = patterns(count)
    assert all(
        any(one not in run and other in run for run in runs)
        for one in range(count)
        for other in range(count)
        if one != other
    )


def test_what_is_cut_and_put_together_is_what_it_was() -> None:
    x, y = torch.randn(3, 4, 2), torch.arange(3)
    value = {"x": x, "again": [x, (y, 3, "a", torch.zeros(2), torch.tensor(1.0))]}
    parts = [cut(value, 3, span) for span in spans(3, 2)]
    assert parts[0]["again"][0] is parts[0]["x"] and parts[0]["again"][1][3] is value["again"][1][3]  # type: ignore[index]
    assert torch.equal(joined([part["x"] for part in parts], spans(3, 2), x), x)
    held = cut(Held("a class", 0, {"mask": x, "count": 3}), 3, (1, 3))
    assert type(held) is Held and torch.equal(held.state["mask"], x[1:]) and held.state["count"] == 3


def test_what_is_spoilt_is_infinite() -> None:
    x, y, mask = torch.randn(1, 3).expand(2, 3), torch.tensor([7, 9]), torch.tensor([True, False])
    made = spoilt([x, y, mask, torch.ones(2)], 2, [(1, 2)])
    assert made[0][1].tolist() == [math.inf, -math.inf, math.inf] and torch.equal(made[0][0], x[0])
    assert (
        made[1].tolist() == [7, 4]
        and made[2].tolist() == [True, True]
        and made[3].tolist() == [1.0, math.inf]
        and y.tolist() == [7, 9]
    )


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(2, 3).T,
        torch.randn(1, 3).expand(4, 3),
        torch.randn(6)[::2],
        torch.randn(2, dtype=torch.complex64).conj(),
    ],
)
def test_what_is_sent_keeps_its_strides(x: torch.Tensor) -> None:
    there = sent(x, CPU, META)
    assert (
        there.device == META
        and there.shape == x.shape
        and (x.is_conj() or there.stride() == x.stride())
        and sent(x, CPU, CPU) is sent(x, META, CPU) is x
    )


def test_a_recorded_call_makes_its_tensors_elsewhere() -> None:
    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        steps = torch.arange(4, device=x.device, dtype=x.dtype)
        return net.lin(x) + steps + torch.tensor([1.0, 2.0, 3.0, 4.0]).to("cpu")  # type: ignore[no-any-return]

    trace = trace_of(Forward(forward, lin=nn.Linear(4, 4)), torch.randn(2, 4))
    moved = retargeted(trace, CPU, META)
    assert {node.meta["device"] for node in moved.graph.nodes if "device" in node.meta} == {META}
    assert {node.meta["device"] for node in trace.graph.nodes if "device" in node.meta} == {CPU}
    named = [
        value
        for node in moved.graph.nodes
        for value in (*node.args, *node.kwargs.values())
        if isinstance(value, (torch.device, str))
    ]
    assert META in named and CPU not in named
    assert [str(node.target) for node in moved.graph.nodes if node.op != "placeholder"] == [
        str(node.target) for node in trace.graph.nodes if node.op != "placeholder"
    ]
