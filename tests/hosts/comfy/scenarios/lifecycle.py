"""Nodes beside one another, the plain model in between, and what is left when models go."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import comfy.model_management
import comfy.model_patcher
import torch
from driver import (
    CompileConfig,
    assert_close,
    assert_differs,
    assert_fused,
    calls,
    fast_compile,
    layouts,
    load,
    report_of,
    sample,
)
from scenario_tools import lora


def scenario_the_incoming_model_stays_as_it_was() -> None:
    model = load("sd3")
    wrappers, callbacks, options = (
        copy.deepcopy(getattr(model, name)) for name in ("wrappers", "callbacks", "model_options")
    )
    keys = list(model.model.state_dict())
    plain = sample(model)
    fast = fast_compile.apply(model)
    sample(fast), sample(fast)
    assert fast is not model and fast.model is model.model
    assert (model.wrappers, model.callbacks, model.model_options) == (wrappers, callbacks, options)
    assert list(model.model.state_dict()) == keys, "the names of the weights changed: LoRAs wouldn't match"
    assert torch.equal(sample(model), plain)


def scenario_the_plain_model_in_between() -> None:
    model = load("sd15")
    plain, layout = sample(model), layouts(model)
    fast = fast_compile.apply(model)
    sample(fast)
    quick = sample(fast)
    for _ in range(2):
        assert report_of(model).adopted_bytes
        assert torch.equal(sample(model), plain)
        assert layouts(model) == layout
        assert (
            not model.model.diffusion_model._forward_pre_hooks
            and "_forward" not in model.model.diffusion_model.__dict__
        )
        before = calls(model)
        assert torch.equal(sample(fast), quick)
        assert_fused(model, before)
        assert not (calls(model) - before)["traced"]


def scenario_one_node_on_two_models() -> None:
    first, second = load("sd15"), load("sd3")
    expected = sample(first), sample(second)
    fast = fast_compile.apply(first), fast_compile.apply(second)
    for _ in range(2):
        for mine, theirs in zip(fast, expected, strict=True):
            assert_close(sample(mine), theirs)
    assert_fused(first), assert_fused(second)
    assert report_of(first).name == "SD15" and report_of(second).name == "SD3"


def scenario_two_nodes_on_one_model() -> None:
    model = load("sd3")
    plain = sample(model)
    first, second, chained = (
        fast_compile.apply(model),
        fast_compile.apply(model),
        fast_compile.apply(fast_compile.apply(model)),
    )
    for fast in (first, second, chained):
        sample(fast)
    assert calls(model)["traced"] == 1, "nodes with the same settings share what was traced"
    assert torch.equal(sample(first), sample(chained))
    other = fast_compile.apply(model, CompileConfig(adopt_weights=False, disabled_passes=("fuse_attention",)))
    sample(other)
    assert_close(sample(other), plain)
    assert report_of(model).settings["adopt_weights"] is False
    assert report_of(model).signatures[0].passes.get("fuse_attention") is None
    sample(first)
    assert_close(sample(first), plain)
    assert_fused(model)
    assert torch.equal(sample(model), plain)


def scenario_nothing_is_left_when_models_go() -> None:
    """Without the garbage collector, whoever sampled last, and after an exception."""
    gc.collect()
    gc.disable()
    try:
        for last in ("fast", "plain", "failed", "lora"):
            model = load("sd3")
            fast = fast_compile.apply(model)
            sample(fast), sample(fast)
            if last == "plain":
                sample(model)
            elif last == "lora":
                sample(lora(fast, "sd3"))
            elif last == "failed":
                try:
                    sample(fast, positive=[[torch.zeros(1, 77, 12), {"pooled_output": torch.zeros(1, 2048)}]])
                    raise SystemExit("it should have failed")
                except RuntimeError:
                    pass
            alive = weakref.ref(model.model), weakref.ref(model.model.diffusion_model)
            assert len(fast_compile.states()) == 1
            del model, fast
            comfy.model_management.unload_all_models()
            assert [ref() for ref in alive] == [None, None], f"the model is still there ({last} last)"
            assert fast_compile.states() == []
    finally:
        gc.enable()


def scenario_nothing_is_left_when_a_layer_knows_its_model() -> None:
    """Another node's function in a layer may know the patcher; it is part of what is compared at each call, so the
    compiled state knows it too.
    """
    model = load("sd3")
    layer = next(module for module in model.model.diffusion_model.modules() if isinstance(module, torch.nn.LayerNorm))

    def forward(x: torch.Tensor, model: Any = model, before: Any = layer.forward) -> torch.Tensor:
        return before(x) * (1 if model.model is not None else 0)

    layer.forward = forward
    fast = fast_compile.apply(model)
    sample(fast), sample(fast)
    assert_fused(model)
    alive = weakref.ref(model.model)
    del model, fast, layer, forward
    comfy.model_management.unload_all_models()
    gc.collect()
    assert alive() is None and fast_compile.states() == []


def scenario_unloaded_and_loaded_again() -> None:
    model = load("sd15")
    fast = fast_compile.apply(model)
    sample(fast)
    quick = sample(fast)
    comfy.model_management.unload_all_models()
    before = calls(model)
    assert torch.equal(sample(fast), quick)
    assert_fused(model, before)
    assert not (calls(model) - before)["traced"]


def scenario_a_copy_of_the_model() -> None:
    model = load("sd15")
    plain = sample(model)
    fast = fast_compile.apply(model)
    sample(fast), sample(fast)
    keep = {id(model.model.model_config): model.model.model_config}  # ComfyUI's own can't be copied
    twin = comfy.model_patcher.ModelPatcher(copy.deepcopy(model.model, keep), model.load_device, model.offload_device)
    before = calls(model)
    assert_close(sample(twin), plain)
    other = fast_compile.apply(twin)
    sample(other)
    assert_close(sample(other), plain)
    assert_fused(twin)
    assert calls(model) == before, "the copy's calls went to the original's state"
    changed = lora(other, "sd15")
    sample(changed)
    assert_differs(sample(changed), plain)
    assert torch.equal(sample(model), plain), "the copy's LoRA reached the original"


def scenario_a_delegate_without_dynamic_memory() -> None:
    """What hooks use under dynamic VRAM; on a CPU it is another clone. Older versions have no such argument."""
    model = load("sd3")
    plain, fast = sample(model), fast_compile.apply(model)
    try:
        delegate = fast.clone(disable_dynamic=True)
    except TypeError:
        delegate = fast.clone()
    sample(delegate)
    assert_close(sample(delegate), plain)
    assert_fused(model)


def scenario_a_part_is_unloaded_between_two_steps() -> None:
    """Silently, as a VAE that needs room does it: LoRAs are then computed of weights at each call, and later layers get
    their weights back.
    """

    def parted(model: Any) -> Any:
        patched = lora(model, "sd15").clone()
        count = [0]

        def wrapper(apply: Any, call: dict[str, Any]) -> Any:
            count[0] += 1
            if count[0] == 3:
                patched.partially_unload(patched.offload_device, 100 * 2**20)
            return apply(call["input"], call["timestep"], **call["c"])

        patched.set_model_unet_function_wrapper(wrapper)
        return patched

    model, twin = load("sd15"), load("sd15")
    fast = fast_compile.apply(model)
    sample(lora(fast, "sd15"), steps=4)
    expected = sample(parted(twin), steps=4)
    before = calls(model)
    assert_close(sample(parted(fast), steps=4), expected)
    assert not (calls(model) - before)["eager"], dict(report_of(model).reasons)
    before = calls(model)
    assert_close(sample(lora(fast, "sd15"), steps=4), sample(lora(twin, "sd15"), steps=4))
    assert_fused(model, before)


def scenario_weights_stored_in_other_types() -> None:
    """Stored in a type that isn't computed in: layers cast at each call.

    Fused, or eager for a reason, and right either way.
    """
    for dtype, limit in ((torch.float8_e4m3fn, 1e-4), (torch.bfloat16, 4e-2), (torch.float16, 4e-3)):
        model = load("sd3", options={"dtype": dtype})
        assert model.model.get_dtype() == dtype
        expected = sample(model)
        fast = fast_compile.apply(model)
        sample(fast)
        before = calls(model)
        assert_close(sample(fast), expected, limit)
        assert_fused(model, before)
        assert torch.equal(sample(model), expected)
