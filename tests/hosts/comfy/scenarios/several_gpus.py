"""Fast Compile on Several GPUs in a real ComfyUI.

The other GPUs are pretended: each is the CPU, with copies of the weights of its own.
"""

from __future__ import annotations

import importlib
from typing import Any

import comfy.model_management as management
import tiny
import torch
from driver import PACK, assert_close, assert_differs, calls, fast_compile, load, prompt, report_of, sample
from part_tools import reports, vae
from scenario_tools import lora

CONFIG = importlib.import_module(".sfast_core.config", PACK.__name__)
TWO = ("cpu", "cpu")


def _said(model: Any) -> str:
    return "\n".join(report_of(model).several)


def scenario_both_prompts_at_once() -> None:
    for family in ("sd15", "sd3"):
        model, twin = load(family), load(family)
        fast = fast_compile.apply_devices(model, TWO)
        sample(fast)  # the first of a process fills a table of einops's
        got = sample(fast, steps=3)
        assert_close(got, sample(twin, steps=3))
        assert "1 on cpu, 1 on cpu" in _said(model), _said(model)
        before = calls(model)
        assert torch.equal(sample(fast, steps=3), got), "the same seed, other bits"
        since = calls(model) - before
        assert not since["eager"] and not since["traced"], dict(since)


def scenario_a_lora_that_changes() -> None:
    model, twin = load("sd15"), load("sd15")
    fast = fast_compile.apply_devices(fast_compile.apply(model), TWO)
    plain = sample(fast)
    for strength in (1.0, 0.4, None, 1.0):
        mine, theirs = (
            (fast, twin) if strength is None else (lora(fast, "sd15", strength), lora(twin, "sd15", strength))
        )
        got = sample(mine)
        assert_close(got, sample(theirs))
        if strength is None:
            assert torch.equal(got, plain)
        else:
            assert_differs(got, plain)
    assert "1 on cpu, 1 on cpu" in _said(model), _said(model)


def scenario_one_picture_without_guidance() -> None:
    """Along its tokens."""
    for family in ("flux", "sd3"):
        model, twin = load(family, torch.float32), load(family, torch.float32)
        fast = fast_compile.apply_devices(fast_compile.apply(model), TWO)
        sample(fast, steps=1, cfg=1.0)  # the first of a process fills a table of einops's
        got = sample(fast, steps=3, cfg=1.0)
        assert_close(got, sample(twin, steps=3, cfg=1.0))
        assert "tokens are divided among 2 (cpu, cpu)" in _said(model), _said(model)
        if family == "flux":  # hundreds of megabytes of it
            continue
        before = calls(model)
        assert torch.equal(sample(fast, steps=3, cfg=1.0), got), "the same seed, other bits"
        since = calls(model) - before
        assert not since["eager"] and not since["traced"], dict(since)
        assert_close(sample(fast, size=(96, 64), cfg=1.0), sample(twin, size=(96, 64), cfg=1.0))
        assert_close(sample(fast, cfg=7.0), sample(twin, cfg=7.0))


def scenario_a_lora_that_changes_on_one_picture() -> None:
    model, twin = load("sd3"), load("sd3")
    fast = fast_compile.apply_devices(fast_compile.apply(model), TWO)
    plain = sample(fast, cfg=1.0)
    for strength in (1.0, 0.4, None, 1.0):
        mine, theirs = (fast, twin) if strength is None else (lora(fast, "sd3", strength), lora(twin, "sd3", strength))
        got = sample(mine, cfg=1.0)
        assert_close(got, sample(theirs, cfg=1.0))
        if strength is None:
            assert torch.equal(got, plain)
        else:
            assert_differs(got, plain)
    assert "tokens are divided among 2" in _said(model), _said(model)


def scenario_the_copies_are_in_the_hosts_list_and_go() -> None:
    model = load("sd15")
    fast = fast_compile.apply_devices(model, TWO)
    expected = sample(fast)
    (state,) = fast_compile.states()
    (replica,) = {id(held): held for held, _ in state.engine.several.others.held() if held is not None}.values()
    assert any(listed.model_memory() == replica.bytes > 0 for listed in management.current_loaded_models)
    management.unload_all_models()
    assert replica.bytes == 0
    assert torch.equal(sample(fast), expected)


def scenario_the_node_in_front_and_behind() -> None:
    node = importlib.import_module(".nodes.several_gpus", PACK.__name__).FastCompileSeveralGPUs
    for front in (True, False):
        model = load("sd15")
        config = CONFIG.CompileConfig(capture_after=3)
        first = node.execute(model, devices="cpu, cpu").result[0] if front else fast_compile.apply(model, config)
        fast = fast_compile.apply(first, config) if front else node.execute(first, devices="cpu, cpu").result[0]
        assert_close(sample(fast), sample(load("sd15")))
        (state,) = (state for state in fast_compile.states() if state.base_model() is model.model)
        assert state.config.capture_after == 3 and state.config.devices == TWO and "1 on cpu" in _said(model), _said(
            model
        )


def scenario_functions_of_others() -> None:
    """One that asks which prompt is which isn't computed in parts, one that doesn't is."""

    def asks(q: Any, k: Any, v: Any, extra: Any) -> Any:
        return q * (1.0 + 0.1 * extra["cond_or_uncond"][0]), k, v

    def adds(q: Any, k: Any, v: Any, extra: Any) -> Any:
        return q * 1.5, k, v

    for patch, cut in ((asks, False), (adds, True)):
        model, twin = load("sd15"), load("sd15")
        mine, theirs = fast_compile.apply_devices(model, TWO), twin.clone()
        mine.set_model_attn1_patch(patch), theirs.set_model_attn1_patch(patch)
        assert_close(sample(mine, steps=3), sample(theirs, steps=3))
        assert ("1 on cpu, 1 on cpu" in _said(model)) is cut, _said(model)


def scenario_a_picture_is_decoded_in_stripes() -> None:
    plain = vae()
    fast = fast_compile.apply_vae(plain, CONFIG.CompileConfig(devices=TWO))
    for height in (24, 24, 32, 24):
        latent = tiny.noise((1, 4, height, 12), 3)
        assert_close(fast.decode(latent), plain.decode(latent))
    said = "\n".join(line for report in reports(plain.first_stage_model).values() for line in report.several)
    assert "192 rows of pixels are divided among 2 (cpu, cpu)" in said, said


def scenario_one_gpu() -> None:
    model = load("sd15")
    fast = fast_compile.apply_devices(model, "all")
    assert_close(sample(fast), sample(load("sd15")))
    assert "there is no other device" in _said(model) and prompt(model, 1)
