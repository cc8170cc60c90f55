"""What several scenario files share."""

from __future__ import annotations

import ctypes
import importlib
import random
import runpy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import comfy.sd
import tiny
import torch
from driver import PACK, assert_close, calls, fast_compile, load, prompt, sample

MB = 2**20
#: Strengths and seeds of LoRAs that are on at once.
LORA_SETS = [((1.0, 5),), ((0.4, 5),), ((1.0, 905),), ((1.0, 5), (0.5, 905)), ((0.3, 7), (0.5, 905))]
#: Of a sampling, in which a graph serves enough calls to be captured again when it is lost.
STEPS = 1 + importlib.import_module(".sfast_core.runtime.graph_lifetimes", PACK.__name__).ENOUGH_CALLS
GRAPHS = importlib.import_module(".sfast_core.runtime.graphs", PACK.__name__)
_FAKES = runpy.run_path(str(Path(__file__).resolve().parents[2] / "fakes.py"))  # the host has a package "tests", too


def lora(model: Any, family: str, strength: float = 1.0, seed: int = 5) -> Any:
    """A clone with the family's LoRA, as the node Load LoRA makes it."""
    weights = tiny.lora(family, seed) if family != "sd3" else _sd3_lora(seed)
    return comfy.sd.load_lora_for_models(model, None, weights, strength, 0.0)[0]


def switch_loras(model: Any, twin: Any, sets: Sequence[tuple[tuple[float, int], ...]], tolerance: float) -> None:
    """A hundred samplings of ``model``, an SD1.5, compiled and with LoRAs in any order, each as its plain twin makes
    it, all by one trace.
    """
    fast, plan, expected = fast_compile.apply(model), random.Random(3), dict[Any, torch.Tensor]()
    for _ in range(100):
        chosen = plan.choice(sets)
        mine, theirs = fast, twin
        for step in chosen:
            mine, theirs = lora(mine, "sd15", *step), lora(theirs, "sd15", *step)
        if chosen not in expected:
            expected[chosen] = sample(theirs, steps=1)
        assert_close(sample(mine, steps=1), expected[chosen], tolerance)
    assert calls(model)["traced"] == 1 and not calls(model)["eager"], dict(calls(model))


def _sd3_lora(seed: int) -> dict[str, Any]:
    name, (rows, columns) = "lora_unet_final_layer_linear", (64, 128)
    up, down = tiny.noise((rows, 4), seed, 0.3), tiny.noise((4, columns), seed + 1, 0.1)
    return {f"{name}.lora_up.weight": up, f"{name}.lora_down.weight": down}


def apply_model(model: Any, seed: int, batch: int = 2) -> torch.Tensor:
    """One call of a loaded patcher's BaseModel, with the wrappers that the patcher carries, without the sampler around
    it.
    """
    ((context, extra),) = prompt(model, 3)
    shape = (batch, model.model.latent_format.latent_channels, 8, 8)
    conditions = {"c_crossattn": context.expand(batch, -1, -1)}
    if "pooled_output" in extra:
        conditions["y"] = extra["pooled_output"].expand(batch, -1)
    options = {"wrappers": model.wrappers, "cond_or_uncond": [0], "sigmas": torch.full((1,), 0.5)}
    noise = tiny.noise((max(batch, 1), *shape[1:]), seed)[:batch]
    return model.model.apply_model(noise, torch.full((batch,), 0.5), transformer_options=options, **conditions)


def fake_graphs(count: int = 0) -> Any:
    """A device's graphs, ``count`` of them already there, 100 MB each."""
    graphs = GRAPHS.DeviceGraphs(_FAKES["FakeBackend"](free=1000 * MB, cost=100 * MB))
    for _ in range(count):
        graphs.capture([torch.zeros(4)], lambda inputs: [], 10**12)
    assert graphs.bytes >= count * 100 * MB
    return graphs


def replaying(family: str) -> tuple[Any, Any, Any]:
    """A model, its fast clone, and the graphs, with one captured,
    which reads the addresses that the weights had then.
    """
    model = load(family)
    fast, graphs = fast_compile.apply(model), fake_graphs()
    sample(fast)
    (state,) = fast_compile.states()
    (on,) = state.engine.devices
    on.graphs = graphs
    resolve = state.engine.store.tensors
    state.engine.store.tensors = lambda *wanted: [_by_address(tensor) for tensor in resolve(*wanted)]
    for graphed in on.entries.programs():
        graphed.graphs = graphs
        object.__setattr__(graphed.program, "capturable", None)
    sample(fast)
    return model, fast, graphs


def _by_address(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory, which isn't held."""
    spanned = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    memory = (ctypes.c_char * (spanned * tensor.itemsize)).from_address(tensor.data_ptr())
    return torch.frombuffer(memory, dtype=tensor.dtype).as_strided(tensor.shape, tensor.stride())
