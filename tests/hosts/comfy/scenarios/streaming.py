"""Models of which ComfyUI keeps a part in main memory.

There is no GPU here: what is away is what ComfyUI's loading says, and a graph computes again.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import comfy.model_management as management
import tiny
import torch
from comfy.model_patcher import LowVramPatch, ModelPatcher
from driver import PACK, assert_close, assert_differs, calls, fast_compile, load, report_of, sample
from scenario_tools import STEPS, fake_graphs, lora
from twins import ELSEWHERE

ENGINE = importlib.import_module(".sfast_core.engine", PACK.__name__)
OFFLOAD = importlib.import_module(".sfast_core.hosts.comfy.offload", PACK.__name__).ComfyOffload


def _away(offload: Any, ref: Any, tensor: torch.Tensor, device: torch.device) -> bool:
    """What ComfyUI marks so when it loads a part."""
    return hasattr(ref.module(), "prev_comfy_cast_weights")


_ROOM = [1.0]
_LOAD = ModelPatcher.load


def _load(
    patcher: Any,
    device_to: Any = None,
    lowvram_model_memory: float = 0,
    force_patch_weights: bool = False,
    full_load: bool = False,
) -> Any:
    """ComfyUI's, with as much room as there is in these scenarios."""
    room = _ROOM[0]
    return _LOAD(
        patcher,
        device_to,
        int(room * patcher.model_size()) if room < 1 else lowvram_model_memory,
        force_patch_weights,
        full_load and room >= 1,
    )


@contextmanager
def _partly(graphs: Any = None) -> Iterator[None]:
    _ROOM[0] = 1.0
    with (
        patch.object(OFFLOAD, "away", _away),
        patch.object(ENGINE, "device_graphs", lambda device: graphs),
        patch.object(ModelPatcher, "load", _load),
    ):
        yield


def _parted(patcher: Any, room: float) -> Any:
    """Loaded as far as ``room`` times its size goes, on a device that isn't its own, and so from now on."""
    patcher.load_device = ELSEWHERE
    if room != _ROOM[0]:
        management.free_memory(1e30, ELSEWHERE)
    _ROOM[0] = room
    management.load_models_gpu([patcher])
    assert patcher.model.model_lowvram == (room < 1)
    return patcher


def scenario_a_model_that_was_never_whole() -> None:
    """Traced, proved and fused with most of it away."""
    with _partly():
        model, twin = load("sd15"), load("sd15")
        fast = _parted(fast_compile.apply(model), 0.1)
        theirs = _parted(twin, 0.1)
        first = sample(fast, steps=3)
        assert_close(first, sample(theirs, steps=3))
        assert set(report_of(model).calls) == {"traced", "fused"}, calls(model)
        (signature,) = report_of(model).signatures
        assert signature.streamed_bytes > 0.5 * model.model_size() and signature.ring_bytes
        assert "streams" in report_of(model).text()
        assert torch.equal(sample(fast, steps=3), first)


def scenario_another_part_each_time() -> None:
    """A new graph at most, and the same bits."""
    with _partly(fake_graphs()):
        model = load("sd15")
        fast = fast_compile.apply(model)
        expected, seen = None, []
        for room in (1.0, 0.6, 0.2, 0.05, 0.4, 1.0, 0.3):
            result = sample(_parted(fast, room), steps=3)
            expected = result if expected is None else expected
            assert torch.equal(result, expected), room
            seen.append(report_of(model).signatures[0].streamed_bytes + report_of(model).signatures[0].kept_bytes)
        assert report_of(model).calls["traced"] == 1 and not report_of(model).calls["eager"], calls(model)
        assert seen[0] == seen[5] == 0 and 0 < seen[1] < seen[2] < seen[3] and seen[4] < seen[2], seen


def scenario_loras_of_a_partly_loaded_model() -> None:
    """Computed on arrival by ComfyUI's own function, within the graph: what a model that is all there has with the
    patches in its weights, and ComfyUI has so. Without a graph in a ComfyUI whose function can't be handed a LoRA's
    matrices: it brings them from memory that isn't pinned.
    """
    prepares = hasattr(LowVramPatch, "prepare")
    with _partly(fake_graphs()):
        model, twin = load("sd15"), load("sd15")
        fast, seen = fast_compile.apply(model), {}
        for room, strength in ((0.1, 1.0), (0.1, None), (0.1, 0.4), (0.6, 0.4), (1.0, 0.4), (0.2, 1.0), (0.2, None)):
            mine, theirs = (
                (fast, twin) if strength is None else (lora(fast, "sd15", strength), lora(twin, "sd15", strength))
            )
            before = calls(model) if seen else None
            result = sample(_parted(mine, room), steps=STEPS)
            computed = any(getattr(module, "weight_function", None) for module in model.model.modules())
            assert computed == (strength is not None and room < 1)
            if before is not None and (prepares or not computed):
                assert (calls(model) - before)["replayed"] >= 2, (room, strength, calls(model) - before)
            assert_close(result, sample(_parted(theirs, room), steps=STEPS))
            for other, before in seen.items():
                if other != strength:
                    assert_differs(result, before)
            seen[strength] = result
        assert report_of(model).calls["traced"] == 1 and not report_of(model).calls["eager"], calls(model)


def scenario_a_function_of_another_node() -> None:
    """Of a layer that is away, or isn't: eager, with the reason, until it is gone."""
    with _partly():
        model, twin = load("sd15"), load("sd15")
        fast, theirs = _parted(fast_compile.apply(model), 0.5), _parted(twin, 0.5)
        sample(fast)
        for name in ("input_blocks.1.1.proj_in", "middle_block.1.proj_in"):
            for each in (model, twin):
                each.model.diffusion_model.get_submodule(name).weight_function = [lambda weight: weight * 1.7]
            before = calls(model)
            assert_close(sample(fast), sample(theirs))
            since = calls(model) - before
            assert since["eager"] == 2 and any("compute their weights" in reason for reason in since), since
            for each in (model, twin):
                each.model.diffusion_model.get_submodule(name).weight_function = []
        before = calls(model)
        assert_close(sample(fast), sample(theirs))
        assert not (calls(model) - before)["eager"], calls(model)


def scenario_unloaded_in_the_middle_of_a_sampling() -> None:
    """Silently, as for a VAE that needs room: what is unloaded has its LoRA computed from then on.

    The graph doesn't read what is gone.
    """
    with _partly(fake_graphs()):
        model = load("sd15")
        fast = _parted(lora(fast_compile.apply(model), "sd15"), 1.0)
        expected, count = sample(fast, steps=6), [0]

        def wrapper(apply: Any, call: dict[str, Any]) -> Any:
            count[0] += 1
            if count[0] == 3:
                parted.partially_unload(torch.device("cpu"), 100 * 2**20)
            return apply(call["input"], call["timestep"], **call["c"])

        parted = fast.clone()
        parted.set_model_unet_function_wrapper(wrapper)
        assert_close(sample(parted, steps=6), expected)
        assert model.model.model_lowvram and report_of(model).signatures[0].stream_lines()
        assert not report_of(model).calls["eager"] and report_of(model).calls["traced"] == 1, calls(model)


def scenario_quantised_weights() -> None:
    """Brought by their parts, numbers and scales; a LoRA on such a one runs as it was."""
    for how in ("int8_tensorwise", "float8_e4m3fn"):
        if how not in tiny.formats():
            continue
        with _partly(fake_graphs()):
            model, twin = load("sd15", quantised={"how": how}), load("sd15", quantised={"how": how})
            fast = fast_compile.apply(model)
            for room in (0.2, 1.0, 0.5):
                assert_close(sample(_parted(fast, room), steps=3), sample(_parted(twin, room), steps=3), 8e-2)
                assert not report_of(model).calls["eager"], calls(model)
                assert bool(report_of(model).signatures[0].stream_lines()) == (room < 1), (how, room, calls(model))
            assert calls(model)["traced"] == 1, (how, calls(model))
            mine, theirs = lora(fast, "sd15"), lora(twin, "sd15")
            assert_close(sample(_parted(mine, 0.2), steps=3), sample(_parted(theirs, 0.2), steps=3), 8e-2)


def scenario_weights_stored_in_another_type() -> None:
    """Cast at each use, LoRAs in the type that is computed with."""
    sample(load("sd3"), steps=1)  # some of what the forward calls fills caches of its own the first time
    for dtype, limit in ((torch.float8_e4m3fn, 1e-4), (torch.bfloat16, 4e-2)):
        with _partly(fake_graphs()):
            model, twin = load("sd3", options={"dtype": dtype}), load("sd3", options={"dtype": dtype})
            fast = fast_compile.apply(model)
            for room, strength in ((0.2, None), (1.0, None), (0.2, 1.0), (0.5, 0.5), (0.5, None)):
                mine, theirs = (
                    (fast, twin) if strength is None else (lora(fast, "sd3", strength), lora(twin, "sd3", strength))
                )
                assert_close(sample(_parted(mine, room), steps=3), sample(_parted(theirs, room), steps=3), limit)
            assert report_of(model).calls["traced"] == 1 and not report_of(model).calls["eager"], (dtype, calls(model))


def scenario_code_of_others_in_a_partly_loaded_model() -> None:
    """Live, since it reads what it keeps, between segments, each of which streams."""
    with _partly(fake_graphs()):
        model, twin, seen = load("sd15"), load("sd15"), []

        def counted(value: torch.Tensor, by: float) -> torch.Tensor:
            seen.append(tuple(value.shape))
            return value * (by + 1e-9 * len(seen))

        def patched(patcher: Any) -> Any:
            patcher = patcher.clone()
            patcher.set_model_attn2_patch(lambda q, k, v, options: (counted(q, 1.5), k, v))
            patcher.set_model_attn1_replace(lambda q, k, v, options: counted(v, 0.9), "middle", 0)
            return patcher

        fast = fast_compile.apply(model)
        for room in (0.2, 0.2, 1.0, 0.5):  # in the first it is found out that it is
            before = calls(model) if seen else Counter[str]()
            mine, theirs = _parted(patched(fast), room), _parted(patched(twin), room)
            assert_close(sample(mine, steps=3), sample(theirs, steps=3))
            since = calls(model) - before
        assert any(each.segments > 1 and each.stream_lines() for each in report_of(model).signatures), report_of(
            model
        ).text()
        assert since["fused"] + since["replayed"] == since.total() > 0, (calls(model), since)
