"""A model's first call under dynamic VRAM, during which the host brings its weights: what it leaves on layers and blocks
to do so is its own business, so that call is recorded as any other.
"""

from __future__ import annotations

import ctypes
import sys
import types
from typing import Any

import pytest
import torch

from sfast_core import CompileConfig
from sfast_core.engine import Engine
from sfast_core.hosts.comfy.dynamic import DynamicStore
from sfast_core.hosts.comfy.leaves import casting_leaves
from tests.hosts.pretended_range import LINEAR

DEVICE = torch.device("cpu")


class Range:
    """Resident whenever that is asked for, in other pages after each eviction."""

    base_addr, offset, generation = 4096, 4096, 7

    def fault(self, address: int, size: int) -> Any:
        return (ctypes.c_uint32 * 2)(self.generation)

    def unpin(self, address: int, size: int) -> None:
        pass

    def get_residency(self) -> list[int]:
        return [1]

    def get_watermark(self) -> int:
        return 1

    def set_watermark(self, size: int) -> None: ...


OPS = """
import numpy
import torch
pages = {}
takes_room = []

def cast_bias_weight(s, x=None, dtype=None, device=None, bias_dtype=None, offloadable=False):
    there = s._v[0].fault(*s._v[1:])
    if s._v_signature is None or bytes(s._v_signature) != bytes(there):
        memory = pages.setdefault(id(s), (numpy.zeros((4, 4), "f"), numpy.zeros(4, "f")))
        s._v_weight, s._v_bias = map(torch.from_numpy, memory)
        s._v_weight.copy_(s.weight), s._v_bias.copy_(s.bias)
        s.__dict__.setdefault("_pins", {})["weights"] = {"pin": object()}
        s._v_signature = there
    return s._v_weight, s._v_bias, None

def uncast_bias_weight(s, weight, bias, used):
    while takes_room:
        takes_room.pop()()
"""


@pytest.fixture
def linear(monkeypatch: pytest.MonkeyPatch) -> type[torch.nn.Linear]:
    """As much of ComfyUI as brings weights: its layer."""
    comfy, ops = types.ModuleType("comfy"), types.ModuleType("comfy.ops")
    comfy.ops = ops  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "comfy", comfy)
    monkeypatch.setitem(sys.modules, "comfy.ops", ops)
    exec(compile(OPS + LINEAR, "comfy/ops.py", "exec"), vars(ops))
    return ops.Linear  # type: ignore[attr-defined, no-any-return]


class Model(torch.nn.Module):
    def __init__(self, linear: type[torch.nn.Linear], reads_all_names: bool) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(linear(4, 4) for _ in range(2))
        self.reads_all_names = reads_all_names

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            names = sorted(vars(block)) if self.reads_all_names else []
            x = torch.tanh(block(x)) + ("weight" in names)
        return x


class BaseModel(torch.nn.Module):
    """What a patcher loads."""

    def __init__(self, diffusion_model: Model) -> None:
        super().__init__()
        self.diffusion_model = diffusion_model.requires_grad_(False)
        self.dynamic_vbars = {DEVICE: Range()}
        for index, layer in enumerate(diffusion_model.blocks):
            layer._v = (self.dynamic_vbars[DEVICE], 4096 + 1024 * index, 80)  # type: ignore[assignment]
        self.load("plain")

    def load(self, patches: str) -> None:
        """As a patcher does it, also behind a change of LoRAs: everything is to be brought again."""
        self.current_weight_patches_uuid = patches
        for layer in self.diffusion_model.blocks:
            layer._v_signature = None  # type: ignore[assignment]


@pytest.mark.parametrize("reads_all_names", [False, True])
def test_the_first_call_is_recorded_and_later_ones_leave_it_alone(
    linear: type[torch.nn.Linear], reads_all_names: bool
) -> None:
    owner = BaseModel(model := Model(linear, reads_all_names))
    config = CompileConfig(allow_cpu=True, adopt_weights=False)
    engine = Engine("model", config, casting_leaves, DynamicStore(owner))

    def check(x: torch.Tensor) -> None:
        expected = torch.tanh(x @ model.blocks[0].weight.T + model.blocks[0].bias)
        expected = torch.tanh(expected @ model.blocks[1].weight.T + model.blocks[1].bias)
        with torch.inference_mode():
            torch.testing.assert_close(engine.call(model, model.forward, (x,), {}), expected)

    check(torch.randn(2, 4))
    assert engine.report.calls == {"traced": 1}, engine.report.reasons
    signatures = [layer._v_signature for layer in model.blocks]
    check(torch.randn(2, 4))
    assert [layer._v_signature for layer in model.blocks] == signatures, "the first call's isn't put there again"
    model.blocks[0].weight.add_(1)
    owner.load("a LoRA")
    check(torch.randn(3, 4))  # at another size
    check(torch.randn(2, 4))
    assert engine.report.calls == {"traced": 2, "fused": 2}, engine.report.reasons


def test_pages_that_are_taken_away_within_the_recorded_call_are_not_read_when_it_is_over(
    linear: type[torch.nn.Linear],
) -> None:
    """Where memory is short the host takes a layer's pages for another's. To read them then ended the process's CUDA;
    here they have other content.
    """
    owner = BaseModel(model := Model(linear, False))
    ops = sys.modules["comfy.ops"]

    def evict() -> None:
        owner.dynamic_vbars[DEVICE].generation += 1
        for weight, bias in ops.pages.values():
            weight[:] = bias[:] = float("nan")

    engine = Engine("model", CompileConfig(allow_cpu=True, adopt_weights=False), casting_leaves, DynamicStore(owner))
    x = torch.randn(2, 4)
    ops.takes_room.append(evict)
    with torch.inference_mode():
        results = [engine.call(model, model.forward, (x,), {}) for _ in range(2)]
    assert engine.report.calls == {"traced": 1, "fused": 1}, engine.report.reasons
    torch.testing.assert_close(results[1], results[0])
    assert not results[0].isnan().any()
