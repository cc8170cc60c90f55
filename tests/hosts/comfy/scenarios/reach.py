"""No silent loss: calls that never come to our forward are counted, with who keeps them from it."""

from __future__ import annotations

import functools
from typing import Any

import comfy.ldm.modules.attention
import comfy.patcher_extension
import comfy.samplers
import torch
from driver import assert_close, assert_differs, assert_fused, calls, fast_compile, load, report_of, sample

DIFFUSION_MODEL = comfy.patcher_extension.WrappersMP.DIFFUSION_MODEL


def _wrapped(model: Any, wrapper: Any) -> Any:
    model = model.clone()
    model.add_wrapper_with_key(DIFFUSION_MODEL, "cache", wrapper)
    return model


def _walk(executor: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Runs the model's blocks itself."""
    model = executor.class_obj
    return type(model)._forward(model, x, *args, **kwargs)


def scenario_a_node_that_walks_the_blocks_itself() -> None:
    model = load("sd15")
    plain = sample(model)
    fast = fast_compile.apply(model)
    assert_close(sample(_wrapped(fast, _walk)), plain)
    reasons = report_of(model).reasons
    assert len(reasons) == 1 and "not by its forward" in next(iter(reasons)), reasons
    before = calls(model)
    assert_close(sample(fast), plain)
    sample(fast)
    assert_fused(model, before)


def scenario_a_node_that_gives_the_model_and_its_blocks_other_classes() -> None:
    """As Fluxtapoz's, by ``__class__``, for as long as the model is loaded."""
    from comfy.ldm.modules.diffusionmodules.openaimodel import ResBlock, UNetModel

    class Block(ResBlock):
        def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            return 1.1 * super().forward(*args, **kwargs)

    class Other(UNetModel):
        def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            return 0.9 * UNetModel._forward(self, *args, **kwargs)

    def inject(model: Any) -> None:
        unet = model.model.diffusion_model
        unet.__class__, unet.input_blocks[1][0].__class__ = Other, Block

    model, twin = load("sd15"), load("sd15")
    fast = fast_compile.apply(model)
    plain = sample(twin)
    assert_close(sample(fast), plain)
    inject(model)
    inject(twin)
    expected = sample(twin)
    assert_differs(expected, plain)
    for _ in range(2):
        assert_close(sample(fast), expected)
    before = calls(model)
    assert_close(sample(fast), expected)
    assert_fused(model, before)


def scenario_a_node_that_gives_the_model_a_class_of_another_file() -> None:
    """As RES4LYF's for Wan, for some of the queues: its class has another forward's name, and looks for options that the
    model's own doesn't know.
    """
    from comfy.ldm.modules.diffusionmodules.openaimodel import UNetModel

    class Other(torch.nn.Module):
        def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            options = kwargs["transformer_options"]
            found = UNetModel._forward(self, *args, **kwargs)
            return found * options["its own"] * options["its second"] * options["its third"]

    def given(model: Any, *values: float) -> Any:
        model = model.clone()
        model.model_options["transformer_options"].update(
            zip(("its own", "its second", "its third"), values, strict=True)
        )
        return model

    model, twin = load("sd15"), load("sd15")
    fast = fast_compile.apply(model)
    for kind, share in ((UNetModel, 1.0), (Other, 0.9), (UNetModel, 1.0), (Other, 0.9), (Other, 0.7)):
        model.model.diffusion_model.__class__ = twin.model.diffusion_model.__class__ = kind
        expected = sample(given(twin, share, 1.1, share), steps=3)
        assert_close(sample(given(fast, share, 1.1, share), steps=3), expected)
    assert calls(model)["eager"] <= 1, calls(model)  # the one that showed that it looks for them


def scenario_a_cache_that_answers_at_some_steps() -> None:
    model = load("sd15")
    kept: list[torch.Tensor] = []

    def cache(executor: Any, *args: Any, **kwargs: Any) -> Any:
        if len(kept) % 2 == 0:
            kept.append(executor(*args, **kwargs))
            return kept[-1]
        kept.append(kept[-1])
        return kept[-1]

    expected = sample(_wrapped(model, cache), steps=4)
    kept.clear()
    fast = _wrapped(fast_compile.apply(model), cache)
    assert_close(sample(fast, steps=4), expected)
    report = report_of(model)
    assert report.answered.total() == 2 and report.calls.total() == 2 and not report.calls["eager"], report.text()


def scenario_options_that_were_copied_before_the_node() -> None:
    """A guidance that calls the model with the options that its node had kept."""
    model, twin = load("sd15"), load("sd15")

    def guided(model: Any, kept: dict[str, Any]) -> Any:
        def more(args: dict[str, Any]) -> torch.Tensor:
            (again,) = comfy.samplers.calc_cond_batch(args["model"], [args["cond"]], args["input"], args["sigma"], kept)
            return args["denoised"] + 0.3 * (args["cond_denoised"] * 0.9 - again)

        model = model.clone()
        model.set_model_sampler_post_cfg_function(more)
        return model

    expected = sample(guided(twin, twin.model_options))
    fast = guided(fast_compile.apply(model), model.model_options)
    assert_close(sample(fast), expected)
    before = calls(model)
    assert_close(sample(fast), expected)
    assert_fused(model, before)
    assert (calls(model) - before).total() == 4
    before = calls(model)
    sample(guided(model, model.model_options))
    assert calls(model) == before, "a sampling without the node is nobody's business"


def scenario_a_node_that_puts_its_wrappers_in_the_place_of_all_others() -> None:
    """As BrushNet's does, by ``wrappers.update``."""
    model, twin = load("sd15"), load("sd15")

    def doubled(executor: Any, *args: Any, **kwargs: Any) -> Any:
        return 2 * executor(*args, **kwargs)

    def replaced(model: Any) -> Any:
        model = model.clone()
        model.wrappers.update({comfy.patcher_extension.WrappersMP.APPLY_MODEL: {None: [doubled]}})
        return model

    expected = sample(replaced(twin))
    fast = replaced(fast_compile.apply(model))
    assert_close(sample(fast), expected)
    before = calls(model)
    assert_close(sample(fast), expected)
    assert_fused(model, before)
    assert "_apply_model" not in vars(model.model)
    before = calls(model)
    assert_close(sample(replaced(model)), expected)
    assert calls(model) == before


def scenario_a_node_that_calls_the_diffusion_model_itself() -> None:
    model, twin = load("sd15"), load("sd15")

    def guided(model: Any) -> Any:
        def more(args: dict[str, Any]) -> torch.Tensor:
            x, inner = args["input"], args["model"].diffusion_model
            context = torch.zeros(len(x), 77, 768)
            return args["denoised"] + 0.1 * inner(x, torch.full((len(x),), 500.0), context)

        model = model.clone()
        model.set_model_sampler_post_cfg_function(more)
        return model

    expected = sample(guided(twin))
    fast = guided(fast_compile.apply(model))
    assert_close(sample(fast), expected)
    before = calls(model)
    assert_close(sample(fast), expected)
    since = calls(model) - before
    assert since["eager"] == since["fused"] == 2, dict(since)
    assert all("to the diffusion model itself" in reason for reason in report_of(model).reasons)


def scenario_a_pack_whose_class_is_given_the_options() -> None:
    """Easy-Use and layerdiffuse do so as soon as they are installed, for nodes of theirs: each block of each model puts
    the call's options on a class.
    """
    block = comfy.ldm.modules.attention.BasicTransformerBlock
    original = block.forward

    class Shared:
        transformer_options: dict[str, Any] = {}

    @functools.wraps(original)
    def forward(self: Any, x: torch.Tensor, context: Any = None, transformer_options: Any = {}) -> torch.Tensor:  # noqa: B006
        Shared.transformer_options = transformer_options
        return original(self, x, context, transformer_options)

    model, twin = load("sd15"), load("sd15")
    block.forward = forward
    try:
        expected = sample(twin, steps=4)
        theirs = Shared.transformer_options
        fast = fast_compile.apply(model)
        assert_close(sample(fast, steps=4), expected)
        before = calls(model)
        assert_close(sample(fast, steps=4), expected)
        assert_fused(model, before)
        mine = Shared.transformer_options
        assert theirs["sigmas"].equal(mine["sigmas"]) and list(theirs["cond_or_uncond"]) == list(mine["cond_or_uncond"])
    finally:
        block.forward = original
