"""No silent loss: calls that never come to our forward are counted, with who keeps them from it."""

from __future__ import annotations

from typing import Any

import comfy.patcher_extension
import comfy.samplers
import torch
from driver import assert_close, assert_fused, calls, fast_compile, load, prompt, report_of, sample

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
    """A guider that keeps the options of the model in front of ours, and samples with them."""
    model = load("sd15")
    fast = fast_compile.apply(model)
    for _ in range(2):
        guider = comfy.samplers.CFGGuider(fast)
        guider.set_conds(prompt(model, 1), prompt(model, 2))
        guider.set_cfg(7.0)
        guider.model_options = model.model_options
        sigmas = comfy.samplers.calculate_sigmas(model.get_model_object("model_sampling"), "normal", 2)
        latent = torch.zeros(1, 4, 8, 8)
        noise = comfy.sample.prepare_noise(latent, 1)
        guider.sample(noise, latent, comfy.samplers.sampler_object("euler"), sigmas, disable_pbar=True, seed=1)
    report = report_of(model)
    assert report.calls == {"eager": 4} and "came past the node" in next(iter(report.reasons)), report.text()
    before = calls(model)
    plain = sample(model)
    assert calls(model) == before, "a sampling without the node is nobody's business"
    sample(fast)
    assert_close(sample(fast), plain)
    assert_fused(model, before)
