"""Other nodes on the same model: what works around the model's forward stays fused, what reaches into the model
otherwise runs eager and is named.
"""

from __future__ import annotations

import itertools
from typing import Any

import comfy.patcher_extension
import torch
from driver import assert_close, assert_differs, assert_eager, assert_fused, calls, fast_compile, load, node, sample

WRAPPERS = comfy.patcher_extension.WrappersMP


_SHARED: dict[str, Any] = {}


def _models() -> tuple[Any, Any]:
    """A model for the node and its twin without it, the same for all patches: each must leave nothing behind."""
    if not _SHARED:
        _SHARED.update(model=load("sd15"), twin=load("sd15"))
    return _SHARED["model"], _SHARED["twin"]


def _plain_twin(**options: Any) -> torch.Tensor:
    """What the model gives without any patch."""
    key = repr(options)
    if key not in _SHARED:
        _SHARED[key] = sample(_models()[1], **options)
    result: torch.Tensor = _SHARED[key]
    return result


def _patched_alike(patch: Any, word: str, fused: bool = False, acts: bool = True, **options: Any) -> None:
    """``patch`` before and behind the node gives what it gives on a plain model: eager with a reason that holds
    ``word``, or fused.
    """
    model, twin = _models()
    options.setdefault("steps", 1)
    plain = _plain_twin(**options)
    torch.manual_seed(3)
    expected = sample(patch(twin), **options)
    if acts:
        assert_differs(expected, plain)
    fast = fast_compile.apply(model)
    sample(fast, **options)
    unpatched = sample(fast, **options)
    for patched in (fast_compile.apply(patch(model)), patch(fast)):
        before = calls(model)
        torch.manual_seed(3)
        assert_close(sample(patched, **options), expected)
        if fused:
            assert_fused(model, before)
        else:
            assert_eager(model, word, before)
    before = calls(model)
    after = sample(fast, **options)
    assert_close(after, plain)
    if (calls(model) - before)["traced"]:
        after = sample(fast, **options)
    assert_fused(model, before)
    assert torch.equal(after, unpatched), "the patch left something behind"


def scenario_attn1_patch() -> None:
    def patch(model: Any) -> Any:
        model = model.clone()
        model.set_model_attn1_patch(lambda q, k, v, options: (q * 1.1, k, v))
        return model

    _patched_alike(patch, "", fused=True, steps=3)


def scenario_attn2_replace() -> None:
    def patch(model: Any) -> Any:
        model = model.clone()
        for block in range(4):
            model.set_model_attn2_replace(lambda q, k, v, options: v.mean(1, keepdim=True).expand_as(q), "input", block)
        return model

    _patched_alike(patch, "", fused=True, steps=3)


def scenario_output_block_patch() -> None:
    def patch(model: Any) -> Any:
        model = model.clone()
        model.set_model_output_block_patch(lambda h, skipped, options: (h * 1.2, skipped * 0.9))
        return model

    _patched_alike(patch, "", fused=True, steps=3)


def scenario_model_sampling_and_rescale_cfg() -> None:
    discrete, rescale = (
        node("nodes_model_advanced", "ModelSamplingDiscrete"),
        node("nodes_model_advanced", "RescaleCFG"),
    )
    _patched_alike(lambda model: rescale(discrete(model, "v_prediction", False), 0.7), "", fused=True)


def scenario_model_sampling_of_sd3() -> None:
    model = load("sd3")
    shift = node("nodes_model_advanced", "ModelSamplingSD3")
    expected = sample(shift(model, 1.0), steps=3)
    fast = fast_compile.apply(shift(model, 1.0))
    sample(fast, steps=3)
    before = calls(model)
    assert_close(sample(fast, steps=3), expected)
    assert_close(sample(shift(fast_compile.apply(model), 1.0), steps=3), expected)
    assert_fused(model, before)


def scenario_wrappers_around_the_forward() -> None:
    """Other nodes' wrappers see each call, whether they stand before or behind ours."""
    seen: list[str] = []

    def patch(model: Any) -> Any:
        model = model.clone()

        def around(kind: str) -> Any:
            def wrapper(executor: Any, *args: Any, **kwargs: Any) -> Any:
                seen.append(kind)
                return executor(*args, **kwargs) * 1.02

            return wrapper

        for kind in (WRAPPERS.APPLY_MODEL, WRAPPERS.DIFFUSION_MODEL):
            model.add_wrapper_with_key(kind, "test", around(kind))
        return model

    _patched_alike(patch, "", fused=True)
    assert seen.count(WRAPPERS.APPLY_MODEL) == seen.count(WRAPPERS.DIFFUSION_MODEL) == 3


def scenario_a_wrapper_that_calls_the_model_twice() -> None:
    def patch(model: Any) -> Any:
        model = model.clone()

        def twice(executor: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            return (executor(x, *args, **kwargs) + executor(x * 0.9, *args, **kwargs)) / 2

        model.add_wrapper_with_key(WRAPPERS.APPLY_MODEL, "twice", twice)
        return model

    _patched_alike(patch, "", fused=True)


def _tiled(model: Any, mode: str) -> None:
    """As nodes for seamless pictures do it: in the layers themselves,
    which the node's model and the plain one share.
    """
    for module in model.model.modules():
        if isinstance(module, torch.nn.Conv2d):
            module.padding_mode = mode


def scenario_seamless_tiling() -> None:
    model, twin = load("sd15"), load("sd15")
    fast = fast_compile.apply(model)
    plain = sample(twin)
    sample(fast)
    for mode in ("circular", "zeros", "circular"):
        _tiled(model, mode), _tiled(twin, mode)
        expected = sample(twin)
        before = calls(model)
        assert_close(sample(fast), expected), assert_close(sample(fast), expected)
        assert_fused(model, before)
        assert torch.equal(expected, plain) == (mode == "zeros")


def scenario_blocks_of_another_class() -> None:
    """As token merging does it."""
    model, twin = load("sd15"), load("sd15")
    fast = fast_compile.apply(model)
    plain = sample(fast)
    for module in [module for each in (model, twin) for module in each.model.diffusion_model.modules()]:
        if type(module).__name__ == "BasicTransformerBlock":
            kind = type(module)
            module.__class__ = type(
                kind.__name__,
                (kind,),
                {"forward": lambda self, *args, own=kind, **options: own.forward(self, *args, **options) * 0.9},
            )
    before, expected = calls(model), sample(twin)
    assert_differs(expected, plain)
    assert_close(sample(fast), expected), assert_close(sample(fast), expected)
    assert_fused(model, before)


def _replaced_for_all(place: Any, name: str) -> None:
    """What every model computes with gives half of what it gave."""
    model, twin = _models()
    fast = fast_compile.apply(model)
    plain, own = sample(fast), getattr(place, name)
    setattr(place, name, lambda *args, **options: own(*args, **options) * 0.5)
    try:
        before, expected = calls(model), sample(twin)
        assert_differs(expected, plain)
        assert_close(sample(fast), expected), assert_close(sample(fast), expected)
        assert_fused(model, before)
    finally:
        setattr(place, name, own)
    assert_close(sample(fast), plain)


def scenario_a_method_replaced_for_a_class() -> None:
    from comfy.ldm.modules.attention import FeedForward

    _replaced_for_all(FeedForward, "forward")


def scenario_a_function_replaced_for_all_models() -> None:
    import comfy.ldm.modules.attention

    _replaced_for_all(comfy.ldm.modules.attention, "optimized_attention")


def _counted_in_a_block(inner: Any, call: dict[str, Any], step: int) -> None:
    """A number that the model reads."""
    inner.middle_block[1].transformer_blocks[0].norm1.eps = 1e-5 + step * 1e-9


def _counted_unread(inner: Any, call: dict[str, Any], step: int) -> None:
    inner.middle_block[1].step = step


def _counted_in_an_option(inner: Any, call: dict[str, Any], step: int) -> None:
    call["c"] = {**call["c"], "transformer_options": {**call["c"]["transformer_options"], "step": step}}


def _counting(model: Any, count: Any) -> Any:
    """A clone that counts its calls somewhere."""
    model, steps = model.clone(), itertools.count()

    def wrapper(apply: Any, call: dict[str, Any]) -> Any:
        count(model.model.diffusion_model, call, next(steps))
        return apply(call["input"], call["timestep"], **call["c"])

    model.set_model_unet_function_wrapper(wrapper)
    return model


class _Options:
    """What a sampler's node hands on to patches of its own, callable or not."""

    def __init__(self, step: int) -> None:
        self.steps_so_far = step

    def __call__(self, name: str) -> int:
        return self.steps_so_far


class _Module(torch.nn.Module):
    """As a sampler's node hands on the model's schedule."""


def _an_object_in_the_options(inner: Any, call: dict[str, Any], step: int) -> None:
    options = {"their_options": _Options(step), "their_module": _Module(), "their_list": [_Options(step)]}
    call["c"] = {**call["c"], "transformer_options": {**call["c"]["transformer_options"], **options}}


def scenario_what_differs_at_each_step_and_is_not_read() -> None:
    """A number on the model, and objects in the options: traced once."""
    for count in (_counted_unread, _counted_in_an_option, _an_object_in_the_options):
        model, twin = load("sd15"), load("sd15")
        fast = fast_compile.apply(model)
        assert_close(sample(_counting(fast, count), steps=4), sample(twin, steps=4))
        found = calls(model)
        assert found["traced"] == 1 and found["fused"] >= 3 and not found["eager"], found


def scenario_what_differs_at_each_step() -> None:
    """A number of a layer's that the model reads: that layer runs live, and everything around it is fused."""
    model, twin = load("sd15"), load("sd15")
    fast, expected = fast_compile.apply(model), sample(twin, steps=14)
    assert_close(sample(_counting(fast, _counted_in_a_block), steps=14), expected)
    found = calls(model)
    assert found["traced"] < 8 and found["fused"] > 5, found
    assert_close(sample(fast, steps=14), expected)
    before = calls(model)
    assert_close(sample(fast, steps=14), expected)
    assert_fused(model, before)


def scenario_a_replaced_method() -> None:
    def patch(model: Any) -> Any:
        model = model.clone()
        block = model.model.diffusion_model.middle_block
        model.add_object_patch(
            "diffusion_model.middle_block.forward",
            lambda *args, **kwargs: type(block).forward(block, *args, **kwargs) * 1.5,
        )
        inner = model.model.diffusion_model.out
        model.add_object_patch("diffusion_model.out.forward", lambda x: type(inner).forward(inner, x) * 1.1)
        return model

    _patched_alike(patch, "", fused=True, steps=3)


def scenario_a_method_replaced_for_one_call() -> None:
    """As caching nodes do, by a function wrapper: not through the patcher.

    What it calls of the model is fused block by block.
    """
    from unittest.mock import patch as mocked

    def patch(model: Any) -> Any:
        model = model.clone()
        inner = model.model.diffusion_model

        def wrapper(apply: Any, call: dict[str, Any]) -> Any:
            original = type(inner)._forward

            def changed(*args: Any, **kwargs: Any) -> Any:
                return original(inner, *args, **kwargs) * 1.1

            with mocked.object(inner, "_forward", changed):
                return apply(call["input"], call["timestep"], **call["c"])

        model.set_model_unet_function_wrapper(wrapper)
        return model

    _patched_alike(patch, "", fused=True, steps=3)


def scenario_weights_that_are_computed_at_each_call() -> None:
    def patch(model: Any) -> Any:
        model = model.clone()
        model.add_weight_wrapper("diffusion_model.middle_block.1.proj_in.weight", lambda weight: weight * 1.7)
        return model

    if hasattr(_models()[0], "add_weight_wrapper"):
        _patched_alike(patch, "compute their weights")


def scenario_a_weight_function_that_a_node_adds_to_a_layer() -> None:
    """By itself, where no load brings it, and takes it away again."""
    model, twin = _models()
    fast = fast_compile.apply(model)
    plain = sample(fast, steps=1)
    sample(twin, steps=1)  # both are loaded: a load would take the functions away
    layers = [
        next(m for name, m in one.model.diffusion_model.named_modules() if name.endswith("attn1.to_v"))
        for one in (model, twin)
    ]
    for layer in layers:
        layer.weight_function = [lambda weight: weight * 3]
    expected = sample(twin, steps=1)
    assert_differs(expected, plain)
    before = calls(model)
    assert_close(sample(fast, steps=1), expected)
    assert_eager(model, "compute their weights at each call", before)
    for layer in layers:
        layer.weight_function = []
    sample(fast, steps=1)
    before = calls(model)
    assert_close(sample(fast, steps=1), plain)
    assert_fused(model, before)


def scenario_easycache() -> None:
    """ComfyUI's own node leaves whole steps out; those that it computes run fused."""
    from comfy_extras.nodes_easycache import EasyCacheNode

    def patch(model: Any) -> Any:
        return EasyCacheNode.execute(model, 0.5, 0.0, 1.0, False).result[0]

    _patched_alike(patch, "", fused=True, steps=6)
