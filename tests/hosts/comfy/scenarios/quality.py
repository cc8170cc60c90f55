"""A quality below exact: within its budget of what ComfyUI computes, said wherever the user looks, and right when LoRAs
come, change and go.
"""

from __future__ import annotations

from typing import Any

import torch
from driver import (
    CompileConfig,
    assert_differs,
    assert_fused,
    calls,
    distance,
    fast_compile,
    load,
    node,
    report_of,
    sample,
)
from scenario_tools import lora

NEAR_EXACT = CompileConfig(quality="near-exact")
SAMPLED = 4e-2  #: the latent of two steps at cfg 7, where each result is within 1e-2


def _layers(model: Any) -> list[str]:
    return [clause for signature in report_of(model).signatures for clause in signature.lossy]


def scenario_within_the_budget() -> None:
    for family, least in (("sd15", 20), ("sd3", 10)):
        model, twin = load(family), load(family)
        metadata: dict[str, Any] = {}
        fast = fast_compile.apply(model, NEAR_EXACT, metadata)
        assert metadata == {"fast_compile": {"quality": "near-exact", "done": []}}
        expected, got = sample(twin), sample(fast)
        assert 1e-5 < distance(got, expected) < SAMPLED, distance(got, expected)
        assert_fused(model)
        (signature,) = report_of(model).signatures
        assert signature.passes["eight_bits"] > least and 1e-4 < signature.distance < 1.3e-2, (
            signature.passes["eight_bits"],
            signature.distance,
        )
        assert "linear layers in 8 bits" in _layers(model)[0] and metadata["fast_compile"]["done"] == _layers(model)
        assert "quality: near-exact" in fast_compile.report().text() and report_of(model).copied_bytes
        assert torch.equal(sample(fast), got), "the same seed gives other bits"
        assert torch.equal(sample(model), expected), "the model without the node isn't what it was"
        assert not report_of(model).copied_bytes


def scenario_exact_beside_it() -> None:
    """Without the setting nothing of it is there, also where the same model had it before."""
    model, twin = load("sd15"), load("sd15")
    exact = sample(fast_compile.apply(twin))
    sample(fast_compile.apply(model, NEAR_EXACT))
    assert torch.equal(sample(fast_compile.apply(model)), exact)
    assert not _layers(model) and "eight_bits" not in report_of(model).signatures[-1].passes


def scenario_loras_on_changed_and_off() -> None:
    model, twin = load("sd15"), load("sd15")
    fast = fast_compile.apply(model, NEAR_EXACT)
    plain = sample(fast)
    traced, last = calls(model)["traced"], plain
    for strength, seed in ((1.0, 5), (0.3, 905), (0.0, 0)):
        before = calls(model)
        got = sample(lora(fast, "sd15", strength, seed) if strength else fast)
        expected = sample(lora(twin, "sd15", strength, seed) if strength else twin)
        assert distance(got, expected) < SAMPLED, (strength, seed, distance(got, expected))
        assert_differs(got, last, 2 * distance(got, expected))
        assert_fused(model, before)
        last = got
    assert calls(model)["traced"] == traced, "it was traced again"
    assert torch.equal(last, plain), "it isn't what it was before the LoRA"


def scenario_code_of_others_inside() -> None:
    """Live, since it reads what it keeps.

    What was decided without it holds with it; before, all is exact and that is said.
    """
    model, twin = load("sd15"), load("sd15")
    fast, seen = fast_compile.apply(model, NEAR_EXACT), []

    def patch(out: torch.Tensor, extra: dict[str, Any]) -> torch.Tensor:
        seen.append(tuple(out.shape))
        return out * (1.5 + 1e-9 * len(seen))

    def patched(which: Any) -> Any:
        clone = which.clone()
        clone.set_model_attn1_output_patch(patch)
        return clone

    for _ in range(2):  # in the first it is found out that it is
        assert distance(sample(patched(fast)), sample(patched(twin))) < 1e-3
    assert "other people's code runs inside" in _layers(model)[0], _layers(model)
    assert distance(sample(fast), sample(twin)) < SAMPLED
    got = sample(patched(fast), size=(64, 128))
    assert 1e-5 < distance(got, sample(patched(twin), size=(64, 128))) < SAMPLED
    assert "linear layers in 8 bits" in _layers(model)[-1]


def scenario_steps_that_use_what_others_computed() -> None:
    """With random weights steps are far apart, so the budget is large; what counts is who is asked, who isn't, and that
    it is said.
    """
    config = CompileConfig(quality="fast", quality_parts=("reuse",), quality_budget=5.0)
    model, twin = load("sd15"), load("sd15")
    fast = fast_compile.apply(model, config)
    assert (
        distance(sample(fast, steps=8), sample(twin, steps=8)) < 1e-4
        and "a sampling of 8 steps is too short" in _layers(model)[-1]
    )
    got = sample(fast, steps=12)
    (signature,) = report_of(model).signatures
    assert torch.isfinite(got).all() and 6 <= signature.reused <= 9 and signature.calls == 20, (
        signature.reused,
        signature.calls,
    )
    cached = node("nodes_easycache", "EasyCacheNode")(fast, 1e-9, 0.15, 0.95, False)
    before = signature.reused
    sample(cached, steps=12)
    assert signature.reused == before and any(
        "EasyCache or LazyCache answers steps itself" in clause for clause in _layers(model)
    ), _layers(model)
