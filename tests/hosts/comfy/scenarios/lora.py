"""LoRAs before and behind the node, changed, removed and put back: each time what a model without the node gives, never
what was there before.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

import comfy.hooks
import comfy.sd
import comfy.utils
import tiny
import torch
from driver import (
    assert_close,
    assert_differs,
    assert_fused,
    calls,
    fast_compile,
    layouts,
    load,
    prompt,
    report_of,
    sample,
)

FIRST, SECOND = tiny.lora("sd15", 5), tiny.lora("sd15", 905)


def _lora(model: Any, strength: float = 1.0, weights: dict[str, torch.Tensor] = FIRST) -> Any:
    """What the node Load LoRA does."""
    return comfy.sd.load_lora_for_models(model, None, dict(weights), strength, 0.0)[0]


def scenario_before_the_node() -> None:
    model, twin = load("sd15"), load("sd15")
    plain = sample(model)
    fast = fast_compile.apply(_lora(model))
    sample(fast)
    before = calls(model)
    got = sample(fast)
    assert_close(got, sample(_lora(twin)))
    assert_differs(got, plain)
    assert_fused(model, before)


def scenario_behind_the_node() -> None:
    model, twin = load("sd15"), load("sd15")
    fast = _lora(fast_compile.apply(model))
    sample(fast)
    before = calls(model)
    assert_close(sample(fast), sample(_lora(twin)))
    assert_fused(model, before)


def scenario_changed_removed_and_put_back() -> None:
    model, twin = load("sd15"), load("sd15")
    fast = fast_compile.apply(model)
    sample(fast)
    steps: list[tuple[float, dict[str, torch.Tensor]] | None] = [
        None,
        (1.0, FIRST),
        (0.3, FIRST),
        (1.0, SECOND),
        None,
        (1.0, FIRST),
    ]
    seen = []
    for step in steps:
        mine, theirs = (fast, twin) if step is None else (_lora(fast, *step), _lora(twin, *step))
        before = calls(model)
        seen.append(sample(mine))
        assert_close(seen[-1], sample(theirs))
        assert_fused(model, before)
    assert not (calls(model) - before)["traced"], "a LoRA made it trace again"
    for other in seen[1:4]:
        assert_differs(seen[0], other)
    assert torch.equal(seen[4], seen[0]), "without the LoRA the picture isn't the one from before"
    assert torch.equal(seen[5], seen[1]), "with the LoRA again the picture isn't the one from before"


def scenario_two_at_once() -> None:
    model, twin = load("sd15"), load("sd15")
    fast = _lora(fast_compile.apply(_lora(model, 0.5)), 0.7, SECOND)
    sample(fast)
    assert_close(sample(fast), sample(_lora(_lora(twin, 0.5), 0.7, SECOND)))


def scenario_the_plain_model_afterwards() -> None:
    """Fast without and with a LoRA, then plain with it and without: the bits and the layout from before, although the
    host kept copies.
    """
    model = load("sd15")
    plain, patched, layout = sample(model), sample(_lora(model)), layouts(model)
    fast = fast_compile.apply(model)
    sample(fast), sample(fast)
    assert report_of(model).adopted_bytes, "nothing was laid out anew: this test proves nothing"
    sample(_lora(fast)), sample(_lora(fast))
    assert torch.equal(sample(_lora(model)), patched)
    assert torch.equal(sample(model), plain)
    assert layouts(model) == layout


def scenario_scheduled_by_a_hook() -> None:
    """A LoRA that acts on one prompt only, from the second half on: the host writes it into the weights between two
    calls of a step.
    """

    def hooked(model: Any) -> list[Any]:
        hooks = comfy.hooks.create_hook_lora(lora=dict(FIRST), strength_model=1.0, strength_clip=0.0)
        keyframes = comfy.hooks.HookKeyframeGroup()
        keyframes.add(comfy.hooks.HookKeyframe(strength=0.0, start_percent=0.0))
        keyframes.add(comfy.hooks.HookKeyframe(strength=1.0, start_percent=0.4))
        hooks.set_keyframes_on_hooks(keyframes)
        return prompt(model, 1, hooks=hooks)

    model, twin = load("sd15"), load("sd15")
    plain = sample(twin, steps=4)
    expected = sample(twin, steps=4, positive=hooked(twin))
    fast = fast_compile.apply(model)
    sample(fast, steps=4)
    before = calls(model)
    got = sample(fast, steps=4, positive=hooked(model))
    assert_close(got, expected)
    assert_differs(got, plain)
    assert_fused(model, before)
    assert torch.equal(sample(model, steps=4), plain)


def scenario_a_saved_model_is_the_one_that_was_loaded() -> None:
    """Weights that lie packed and channels_last are written as they were."""
    model = load("sd15")
    expected = {name: value.clone() for name, value in model.model.diffusion_model.state_dict().items()}
    fast = fast_compile.apply(model)
    sample(fast), sample(fast)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "saved.safetensors")
        comfy.sd.save_checkpoint(path, fast)
        saved = comfy.utils.load_torch_file(path)
        for name, value in expected.items():
            assert torch.equal(saved.pop(f"model.diffusion_model.{name}").to(value.dtype), value), name
        del saved
