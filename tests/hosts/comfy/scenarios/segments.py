"""Other nodes' functions inside the model: they run live between the segments of a fused forward, with each step's own
options.
"""

from __future__ import annotations

import itertools
from typing import Any

import comfy.hooks
import comfy.samplers
import tiny
import torch
from driver import (
    assert_close,
    assert_differs,
    assert_fused,
    calls,
    fast_compile,
    load,
    node,
    prompt,
    report_of,
    sample,
)
from scenario_tools import fake_graphs

_STEPS = 4
_LOADED: dict[str, tuple[Any, Any]] = {}


def _models(family: str) -> tuple[Any, Any]:
    """A model for the node and its twin without it."""
    if family not in _LOADED:
        _LOADED[family] = load(family), load(family)
    return _LOADED[family]


def _alike(
    patch: Any, family: str = "sd15", acts: bool = True, traces: int | None = 1, settling: int = 0, **options: Any
) -> Any:
    """Sampled with ``patch``, without it and with it again: as on a plain model, and fused but for ``traces`` first
    calls.

    ``settling``: as many of the first ones run as they were, in which it turns out that functions are to run live.
    """
    model, twin = _models(family)
    options.setdefault("steps", _STEPS)
    plain = sample(twin, **options)
    fast = fast_compile.apply(model)
    sample(fast, **options)
    for _ in range(2):
        torch.manual_seed(3)
        expected = sample(patch(twin), **options)
        if acts:
            assert_differs(expected, plain)
        torch.manual_seed(3)
        before = calls(model)
        assert_close(sample(patch(fast), **options), expected)
        since = calls(model) - before
        if traces is not None:
            assert since["traced"] <= traces and since["eager"] <= settling and since["fused"], dict(since)
            traces = settling = 0
        before = calls(model)
        assert_close(sample(fast, **options), plain)
        assert_fused(model, before)
    return model


def _patched(change: Any) -> Any:
    def patch(model: Any) -> Any:
        model = model.clone()
        change(model)
        return model

    return patch


def scenario_each_kind_of_patch_of_a_unet() -> None:
    def change(model: Any) -> None:
        model.set_model_attn1_patch(lambda q, k, v, options: (q * 1.1, k, v))
        model.set_model_attn2_patch(lambda q, k, v, options: (q, k * 0.9, v * 1.1))
        model.set_model_attn1_output_patch(lambda n, options: n * 1.05)
        model.set_model_attn2_output_patch(lambda n, options: n * 0.95)
        model.set_model_patch(lambda x, options: x * 1.01, "middle_patch")
        model.set_model_input_block_patch(lambda h, options: h * 1.02)
        model.set_model_input_block_patch_after_skip(lambda h, options: h + 0.01)
        model.set_model_output_block_patch(lambda h, skipped, options: (h * 1.2, skipped * 0.9))
        model.set_model_emb_patch(lambda emb, channels, options: emb * 0.99) if hasattr(
            model, "set_model_emb_patch"
        ) else None
        model.set_model_patch(lambda args: {"h": args["h"] * 1.1}, "middle_block_after_patch")

    model = _alike(_patched(change))
    (signature,) = [signature for signature in report_of(model).signatures if signature.recorded_in]
    assert any("output_block_patch" in name for name in signature.recorded_in) and not signature.live


def scenario_patches_that_read_each_steps_options() -> None:
    def change(model: Any) -> None:
        def by_sigma(h: torch.Tensor, skipped: torch.Tensor, options: dict[str, Any]) -> Any:
            factor = (
                1 + options["sigmas"].mean() / options["sample_sigmas"].max() * len(options["cond_or_uncond"]) * 0.1
            )
            return h * factor.to(h), skipped * (1 + 0.01 * options["block"][1])

        model.set_model_output_block_patch(by_sigma)
        model.set_model_attn2_replace(
            lambda q, k, v, options: q * (1 + options["block_index"] + options["n_heads"]) * options["sigmas"][0],
            "input",
            1,
        )

    _alike(_patched(change))


def scenario_replaced_attention_that_changes_its_mind() -> None:
    def change(model: Any) -> None:
        steps = itertools.count()

        def replaced(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
            return q if next(steps) % 3 else v.mean(1, keepdim=True).expand_as(q)

        for block in range(4):
            model.set_model_attn1_replace(replaced, "input", block)
            model.set_model_attn2_replace(replaced, "output", block)

    _alike(_patched(change))


def scenario_patches_that_keep_and_write_to_what_they_are_handed() -> None:
    def change(model: Any) -> None:
        kept: list[torch.Tensor] = []

        def patch(h: torch.Tensor, skipped: torch.Tensor, options: dict[str, Any]) -> Any:
            kept.append(h)
            h[:, : h.shape[1] // 2] *= 1.3
            skipped.mul_(0.9)
            return h + sum(each.mean() for each in kept[-5:]), skipped

        model.set_model_output_block_patch(patch)

    _alike(_patched(change), settling=2)


def scenario_patches_that_draw_random_numbers() -> None:
    def change(model: Any) -> None:
        model.set_model_input_block_patch(lambda h, options: h + 0.1 * torch.randn_like(h))

    _alike(_patched(change))


def scenario_an_override_of_attention() -> None:
    class Override:
        strength = 1.1

        def __call__(self, attention: Any, *args: Any, **kwargs: Any) -> Any:
            return attention(*args, **kwargs) * self.strength

    def change(model: Any) -> None:
        model.model_options["transformer_options"]["optimized_attention_override"] = Override()

    _alike(_patched(change))
    _alike(_patched(change), "sd3")


def scenario_free_u() -> None:
    """With the channels that it looks for as the tiny model has them."""
    for name in ("FreeU", "FreeU_V2"):
        _alike(lambda model, name=name: node("nodes_freelunch", name)(model, 1.3, 1.4, 0.9, 0.2), acts=False)


def scenario_hyper_tile() -> None:
    import random

    def patch(model: Any) -> Any:
        random.seed(1)
        return node("nodes_hypertile", "HyperTile")(model, 32, 2, 1, False)

    _alike(patch, size=(128, 128), traces=None)


def scenario_token_merging() -> None:
    _alike(lambda model: node("nodes_tomesd", "TomePatchModel")(model, 0.5), traces=None, acts=False)


def scenario_perturbed_attention_guidance() -> None:
    _alike(lambda model: node("nodes_pag", "PerturbedAttentionGuidance")(model, 3.0))


def scenario_self_attention_guidance() -> None:
    _alike(lambda model: node("nodes_sag", "SelfAttentionGuidance")(model, 0.5, 2.0), traces=None)


def scenario_skip_layer_guidance() -> None:
    _alike(lambda model: node("nodes_sd3", "SkipLayerGuidanceSD3")(model, "0", 3.0, 0.0, 0.9), "sd3")


def scenario_skip_layer_guidance_of_transformers() -> None:
    _alike(lambda model: node("nodes_slg", "SkipLayerGuidanceDiT")(model, 3.0, 0.0, 1.0, "0", "", 0.0), "sd3")


def scenario_blocks_of_a_transformer_called_by_a_node() -> None:
    """As nodes that cache blocks do: a block is called, left out at every third step, or its result changed."""

    def change(model: Any) -> None:
        steps = itertools.count()

        def around(args: dict[str, Any], extra: dict[str, Any]) -> Any:
            step = next(steps)
            if step % 3 == 2:
                return args
            out = extra["original_block"](args)
            return {**out, "img": out["img"] * (1 + 0.01 * (step % 5))}

        model.set_model_patch_replace(around, "dit", "double_block", 0)

    _alike(_patched(change), "sd3")


def scenario_patches_in_a_block_that_a_node_calls() -> None:
    def change(model: Any) -> None:
        model.set_model_patch_replace(lambda args, extra: extra["original_block"](args), "dit", "double_block", 0)
        model.set_model_patch_replace(lambda args, extra: args, "dit", "single_block", 0)
        model.model_options["transformer_options"]["optimized_attention_override"] = lambda attention, *args, **kwargs: (
            attention(*args, **kwargs) * 0.9
        )

    _alike(_patched(change), "flux", steps=2)


def scenario_what_the_model_never_looks_up() -> None:
    """A patch of a kind that this model doesn't read, and a sampler's own things that are others at each step: one
    trace, one segment.
    """
    model, twin = load("sd15"), load("sd15")
    steps = itertools.count()

    def change(model: Any) -> Any:
        model = model.clone()
        model.set_model_patch(lambda args: args, "noise_refiner")
        inner = model.model_options.get("model_function_wrapper")

        def wrapper(apply: Any, call: dict[str, Any]) -> Any:
            options = {
                **call["c"]["transformer_options"],
                "their_state": object(),
                "their_step": next(steps),
                "their_sigma": torch.rand(1),
                "their_list": [next(steps)],
            }
            call = {**call, "c": {**call["c"], "transformer_options": options}}
            return inner(apply, call) if inner else apply(call["input"], call["timestep"], **call["c"])

        model.set_model_unet_function_wrapper(wrapper)
        return model

    expected = sample(change(twin), steps=6)
    assert_close(sample(change(fast_compile.apply(model)), steps=6), expected)
    found = calls(model)
    assert found["traced"] == 1 and not found["eager"], found


def scenario_an_injection_that_keeps_a_state() -> None:
    """As AnimateDiff injects modules: a layer with a state of its own runs live, what is around it is fused."""
    from comfy.patcher_extension import PatcherInjection

    model, twin = _models("sd15")

    def patch(model: Any) -> Any:
        model = model.clone()

        def inject(patcher: Any) -> None:
            layer = patcher.model.diffusion_model.middle_block[1].proj_out
            own, count = layer.forward, itertools.count(1)

            def forward(x: torch.Tensor) -> torch.Tensor:
                layer.step = next(count)
                return own(x) * (1 + 0.01 * layer.step)

            layer.forward = forward

        def eject(patcher: Any) -> None:
            layer = patcher.model.diffusion_model.middle_block[1].proj_out
            layer.__dict__.pop("forward", None)
            layer.__dict__.pop("step", None)

        model.set_injections("theirs", [PatcherInjection(inject=inject, eject=eject)])
        return model

    fast = fast_compile.apply(model)
    plain = sample(twin, steps=8)
    sample(fast, steps=2)
    for _ in range(2):
        expected = sample(patch(twin), steps=8)
        assert_differs(expected, plain)
        before = calls(model)
        assert_close(sample(patch(fast), steps=8), expected)
        since = calls(model) - before
        assert since["fused"] >= 3, dict(since)
        assert_close(sample(fast, steps=8), plain)


def scenario_layers_that_are_put_in_and_taken_out_again() -> None:
    """As AnimateDiff-Evolved does: for a sampling, and for each call of one whose prompts have LoRAs of their own.
    PyTorch makes a block's table of layers anew where one is taken out, and everything was traced once more.
    """
    from comfy.patcher_extension import PatcherInjection

    model, twin = load("sd15"), load("sd15")
    scale = torch.nn.Conv2d(320, 320, 1)
    torch.nn.init.dirac_(scale.weight).mul_(1.1)

    def patch(model: Any) -> Any:
        model = model.clone()
        block = lambda patcher: patcher.model.diffusion_model.input_blocks[1]  # noqa: E731
        inject = lambda patcher: block(patcher).insert(len(block(patcher)), scale)  # noqa: E731
        eject = lambda patcher: block(patcher).pop(len(block(patcher)) - 1)  # noqa: E731
        model.set_injections("theirs", [PatcherInjection(inject=inject, eject=eject)])
        return model

    lora = comfy.hooks.create_hook_lora(lora=tiny.lora("sd15"), strength_model=1.0, strength_clip=0.0)
    fast = fast_compile.apply(model)
    sample(fast)
    for turn in ("first", "second"):
        for change in (lambda model: model, patch):
            for hooks in ({}, {"hooks": lora}):
                expected, before = sample(change(twin), positive=prompt(twin, 1, **hooks)), calls(model)
                assert_close(sample(change(fast), positive=prompt(model, 1, **hooks)), expected)
                since = calls(model) - before
                assert not since["eager"] and since["traced"] <= (turn == "first"), (turn, hooks, dict(since))


def scenario_segments_that_are_captured() -> None:
    """On a backend that computes again what was captured: the model's blocks that a node calls are captured, too."""
    model, twin = load("sd3"), load("sd3")

    def change(model: Any) -> None:
        steps = itertools.count()

        def around(args: dict[str, Any], extra: dict[str, Any]) -> Any:
            out = extra["original_block"](args) if next(steps) % 3 < 2 else args
            return {"img": out["img"] * 1.1, "txt": out["txt"]}

        model.set_model_patch_replace(around, "dit", "double_block", 0)
        model.model_options["transformer_options"]["optimized_attention_override"] = lambda attention, *args, **kwargs: (
            attention(*args, **kwargs) * 0.9
        )

    patch, graphs = _patched(change), fake_graphs()
    fast = fast_compile.apply(model)
    sample(patch(fast)), sample(patch(fast))
    (state,) = [state for state in fast_compile.states() if state.base_model() is model.model]
    (on,) = state.engine.devices
    on.graphs = graphs
    for graphed in on.entries.programs():
        graphed.graphs = graphs
        object.__setattr__(graphed.program, "capturable", None)
    before = calls(model)
    for _ in range(2):
        assert_close(sample(patch(fast), steps=6), sample(patch(twin), steps=6))
    found = calls(model) - before
    assert found["replayed"] >= 11 and not found["eager"], found
    (signature,) = [signature for signature in report_of(model).signatures if signature.live]
    assert signature.captures == 1 and signature.segments > 2 and signature.graph_bytes > 0


def scenario_an_attention_couple_that_repeats_the_batch_for_one_of_the_prompts() -> None:
    """It notes in the options how, for the function behind the attention; and each prompt's call keeps its trace though
    both look alike.
    """

    def change(model: Any) -> None:
        def couple(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> Any:
            options["couple"] = 2 if options["cond_or_uncond"] == [0] else 1
            return tuple(each.repeat(options["couple"], 1, 1) for each in (q, k * 1.1, v))

        def joined(out: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
            return sum(part * (1 + 0.1 * index) for index, part in enumerate(out.chunk(options["couple"])))  # type: ignore[return-value]

        model.set_model_attn2_patch(couple)
        model.set_model_attn2_output_patch(joined)

    together = comfy.samplers.can_concat_cond
    # each prompt gets a call of its own, as where memory is short
    comfy.samplers.can_concat_cond = lambda one, other: one is other
    try:
        model = _alike(_patched(change), traces=None)
        fast = _patched(change)(fast_compile.apply(model))
        sample(fast, steps=_STEPS)
        before = calls(model)
        sample(fast, steps=_STEPS)
        since = calls(model) - before
        assert since["fused"] == 2 * _STEPS and not since["eager"], dict(since)
    finally:
        comfy.samplers.can_concat_cond = together
