"""A model under dynamic VRAM while memory comes and goes, as other models and what is computed take it: the results of
the model's own weights, whatever is resident.
"""

from __future__ import annotations

import random
import sys
import types
from typing import Any

import numpy
import pytest
import torch

from sfast_core import CompileConfig
from sfast_core.engine import Engine
from sfast_core.hosts.comfy import dynamic, partly_resident
from sfast_core.hosts.comfy.dynamic import DynamicStore
from sfast_core.hosts.comfy.leaves import casting_leaves
from tests.capturing import pretend_graphs
from tests.hosts.pretended_range import LINEAR, MB, Range

DEVICE = torch.device("cpu")
LAYERS, STEPS = 8, 150

OPS = """
import torch

def cast_bias_weight(s, x=None, dtype=None, device=None, bias_dtype=None, offloadable=False):
    found = s._v[0].fault(*s._v[1:])
    there = found and bytes(found)
    if there is None:
        s._v_signature = None
        return s.weight.to(torch.float32, copy=True), s.bias.to(torch.float32, copy=True), None
    if s._v_signature != there:
        s._v_weight, s._v_bias = map(torch.from_numpy, s.memory)
        s._v_weight.copy_(s.weight), s._v_bias.copy_(s.bias)
        s._v_signature = there
    return s._v_weight, s._v_bias, there

def uncast_bias_weight(s, weight, bias, there):
    if there is not None:
        s._v[0].unpin(*s._v[1:])
    s._v[0].between()
"""


class Pressed(Range):
    """Pages that are taken have other content, and others take some while the host brings weights."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(LAYERS)
        self.chance, self.layers = chance, list[Any]()

    def taken(self, page: int) -> None:
        for layer in self.layers:
            if page in self.of(*layer._v[1:]):
                for array in layer.memory:
                    array[:] = float("nan")

    def between(self) -> None:
        if self.chance.random() < 0.05:
            self.free_memory(self.chance.randrange(1, 4) * 32 * MB)


class BaseModel(torch.nn.Module):
    """What a patcher loads from a file of this dtype. The model's is float32."""

    def __init__(self, linear: Any, chance: random.Random, file: torch.dtype) -> None:
        super().__init__()
        layers = (linear(4, 4, dtype=file) for _ in range(LAYERS))
        self.diffusion_model = torch.nn.Sequential(*layers).requires_grad_(False)
        self.range = pages = Pressed(chance)
        self.dynamic_vbars = {DEVICE: pages}
        pages.layers = [*self.diffusion_model]
        for index, layer in enumerate(pages.layers):
            layer.weight_comfy_model_dtype = layer.bias_comfy_model_dtype = torch.float32
            layer._v, layer._v_signature = (pages, pages.base_addr + index * 40 * MB, 40 * MB), None
            layer.memory = numpy.zeros((4, 4), "f"), numpy.zeros(4, "f")
        self.current_weight_patches_uuid = 0

    def patch(self) -> None:
        """Other LoRAs: everything is to be brought again."""
        self.current_weight_patches_uuid += 1
        for layer in self.range.layers:
            layer.weight.normal_()
            layer._v_signature = None

    def expected(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.range.layers:
            x = torch.nn.functional.linear(x, layer.weight.float(), layer.bias.float())
        return x


@pytest.mark.parametrize("file", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("seed", range(4))
def test_results_are_those_of_the_weights(seed: int, file: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    comfy, ops = types.ModuleType("comfy"), types.ModuleType("comfy.ops")
    comfy.ops = ops  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "comfy", comfy)
    monkeypatch.setitem(sys.modules, "comfy.ops", ops)
    exec(compile(OPS + LINEAR, "comfy/ops.py", "exec"), vars(ops))
    monkeypatch.setattr(partly_resident, "_AT_ONCE", 2)
    chance = random.Random(seed)
    torch.manual_seed(seed)
    pretend_graphs(monkeypatch)
    owner = BaseModel(ops.Linear, chance, file)
    pages, model = owner.range, owner.diffusion_model
    monkeypatch.setattr(
        dynamic, "_free_bytes", lambda device: partly_resident.ROOM_BYTES - chance.randrange(3) * 32 * MB
    )
    store = DynamicStore(owner)
    engine = Engine("model", CompileConfig(allow_cpu=True, adopt_weights=False), casting_leaves, store)
    held = set()
    for _ in range(STEPS):
        event = chance.choice(["", "", "", "a call's memory", "another model", "more memory", "made ready", "patches"])
        if event == "a call's memory":
            pages.free_memory(chance.randrange(1, 6) * 32 * MB)
        elif event == "another model":
            pages.free_memory(pages.offset)
            pages.free = chance.randrange(2)
        elif event == "more memory":
            pages.free += chance.randrange(6)
        elif event in ("made ready", "patches"):
            if event == "patches":
                owner.patch()
            pages.prioritize(), store.ask_again()
        x = torch.randn(chance.randrange(1, 3), 4)
        with torch.inference_mode():
            torch.testing.assert_close(engine.call(model, model.forward, (x,), {}), owner.expected(x))
        assert not pages.held, "a page stays pinned"
        held.add(store._asked.pages)
    calls = engine.report.calls
    assert calls["replayed"] > STEPS / 3 and calls["eager"] < STEPS / 10, engine.report.text()
    assert len(held) > 3, "always as much was resident"
