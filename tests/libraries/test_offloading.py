"""Layers that something brings to the device in front of each call and takes away again, as diffusers' group offloading
does.
"""

from __future__ import annotations

import functools
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core import CompileConfig, compile
from sfast_core.libraries.offloading import offloads
from tests.capturing import pretend_graphs
from tests.streaming import PretendOffload

FILE = "diffusers.hooks.group_offloading"


class ModuleGroup:
    """Layers with one way of being brought.

    Those of a group that is away have memory of their own in the place of their weights.
    """

    def __init__(self, *modules: nn.Module) -> None:
        self.modules, self.parameters, self.buffers, self.onload_leader = modules, None, [], None
        self.kept: dict[torch.Tensor, torch.Tensor] = {}
        self.moves, self.away = 0, True

    def tensors(self) -> list[torch.Tensor]:
        return [tensor for module in self.modules for tensor in (*module.parameters(), *module.buffers())]

    def onload_(self) -> None:
        self.moves, self.away = self.moves + 1, False
        for tensor in self.tensors():
            self.kept[tensor] = tensor.data.to("cpu")
            tensor.data = tensor.data.clone()

    def offload_(self) -> None:
        for tensor in self.tensors():
            brought = tensor.data
            tensor.data = self.kept.pop(tensor)
            brought.zero_()  # the memory is anybody's
        for module in (each for group in self.modules for each in group.modules()):
            for name, buffer in module._buffers.items():
                module._buffers[name] = buffer.clone()  # type: ignore[union-attr]  # as Module.to
        self.away = True


class Hook:
    """As diffusers': the group's first layer brings it, each takes it away."""

    def __init__(self, group: ModuleGroup) -> None:
        self.group = group

    def forward(self, module: nn.Module, own: Any, *args: Any) -> Any:
        if self.group.onload_leader is None:
            self.group.onload_leader = module  # type: ignore[assignment]
        if self.group.onload_leader is module:
            self.group.onload_()
        result = own(*args)
        if module is self.group.modules[-1]:
            self.group.offload_()
        return result


class Net(nn.Module):
    """Blocks with a weight, a bias and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.SiLU()) for _ in range(3))
        self.out = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
            x.mul_(1.1)  # in memory that may have been a weight's
        return self.out(x)


def placed(net: Net) -> list[ModuleGroup]:
    """Groups of one block each."""
    groups = []
    for block in net.blocks:
        groups.append(group := ModuleGroup(block))
        hook = Hook(group)
        block.__dict__["_diffusers_hook"] = SimpleNamespace(hooks={"group_offloading": hook})
        block.forward = functools.update_wrapper(functools.partial(hook.forward, block, block.forward), block.forward)  # type: ignore[method-assign]
    return groups


def compiled(net: Net) -> Any:
    """Its blocks' weights are kept elsewhere."""
    fast = compile(net, CompileConfig(allow_cpu=True, stream_budget_bytes=0))
    fast.engine.store._offload = PretendOffload("blocks.")  # type: ignore[attr-defined]
    return fast


@pytest.fixture(autouse=True)
def diffusers(monkeypatch: pytest.MonkeyPatch) -> None:
    there = ModuleType(FILE)
    there.ModuleGroup = ModuleGroup  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, FILE, there)


def test_layers_in_groups_are_recorded_and_brought(monkeypatch: pytest.MonkeyPatch) -> None:
    """By programs of ours, in which none of the groups moves; and by these where a call runs as it was."""
    pretend_graphs(monkeypatch)
    torch.manual_seed(0)
    net, plain = Net().eval(), Net().eval()
    plain.load_state_dict(net.state_dict())
    groups = placed(net)
    assert offloads(net) and not offloads(plain)
    fast = compiled(net)
    with torch.inference_mode():
        for _ in range(6):
            x = torch.randn(4, 8)
            torch.testing.assert_close(fast(x), plain(x), rtol=1e-4, atol=1e-5)
        assert groups[0].moves <= 2  # recorded at the second call, since the first one finds who leads its group
    calls = fast.engine.report.calls
    (signature,) = fast.engine.report.signatures
    assert calls["replayed"] >= 3 and calls["eager"] <= 1 and signature.streamed_bytes, fast.engine.report.text()
    fast.uninstall()
    with torch.inference_mode():
        torch.testing.assert_close(net(x), plain(x))


class Scaled(nn.Module):
    """Reads a value, so that it runs live."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.group: list[ModuleGroup] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.group and self.group[0].away:
            raise RuntimeError("its weight isn't on the device")
        return x * self.scale if x.sum().item() > 0 else x + self.scale


def test_live_code_finds_its_weights_brought(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which a layer around it brings, that runs in programs of ours: it raised an error, and so did the queue."""
    pretend_graphs(monkeypatch)
    torch.manual_seed(0)
    net, plain = Net().eval(), Net().eval()
    for each in (net, plain):
        each.blocks[1].append(Scaled())
    plain.load_state_dict(net.state_dict())
    groups = placed(net)
    net.blocks[1][-1].group.append(groups[1])  # type: ignore[union-attr]
    fast = compiled(net)
    with torch.inference_mode():
        for _ in range(8):
            x = torch.randn(4, 8)
            torch.testing.assert_close(fast(x), plain(x), rtol=1e-4, atol=1e-5)
            assert all(group.away for group in groups)
    report = fast.engine.report
    assert report.calls["eager"] <= 3 and report.signatures[0].segments, report.text()
