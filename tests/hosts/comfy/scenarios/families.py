"""Every family that must go through the tracer, and the shapes and samplers that vary what a call looks like."""

from __future__ import annotations

from typing import Any

import torch
from driver import Forwards, assert_close, assert_fused, calls, fast_compile, load, sample

_SHARED: dict[str, Any] = {}


def _sd15() -> Any:
    """One SD1.5 for the scenarios that only vary the call."""
    if "sd15" not in _SHARED:
        _SHARED["sd15"] = load("sd15")
    return _SHARED["sd15"]


def _same(model: Any, **options: Any) -> None:
    """Plain and fast give the same at each call of the model, and the fast ones ran fused (twice: the first time
    traces).
    """
    plain = Forwards(model)
    expected = sample(plain.model, **options)
    fast = Forwards(fast_compile.apply(model))
    sample(fast.model, **options)
    before, count = calls(model), len(fast.results)
    got = sample(fast.model, **options)
    assert len(plain.results) == count == len(fast.results) - count
    for mine, theirs in zip(fast.results[count:], plain.results, strict=True):
        assert_close(mine, theirs)
    assert_close(got, expected)
    assert_fused(model, before)


def scenario_sd15() -> None:
    _same(_sd15())


def scenario_sdxl() -> None:
    _same(load("sdxl"), size=(32, 32))


def scenario_vega() -> None:
    _same(load("vega"), size=(32, 48))


def scenario_sd3() -> None:
    _same(load("sd3"), steps=3)


def scenario_flux() -> None:
    _same(load("flux", torch.bfloat16), size=(32, 32), cfg=1.0, tokens=(16, 16))


def scenario_a_sampler_with_two_calls_a_step() -> None:
    _same(_sd15(), sampler="heun", steps=3)


def scenario_cfg_1() -> None:
    _same(_sd15(), cfg=1.0)


def scenario_odd_sizes() -> None:
    _same(_sd15(), size=(72, 104))
    _same(load("sd3"), size=(48, 80))


def scenario_a_batch() -> None:
    _same(_sd15(), batch=3)


def scenario_a_long_prompt() -> None:
    _same(_sd15(), tokens=(231, 77))
    _same(_sd15(), tokens=(231, 231))


def scenario_more_conditions_than_one() -> None:
    from driver import prompt

    model = _sd15()
    area = prompt(model, 7, area=(4, 8, 0, 0), strength=1.0)
    _same(model, positive=prompt(model, 1) + area)


def scenario_an_earlier_shape_comes_back() -> None:
    model = _sd15()
    fast = fast_compile.apply(model)
    sizes = [(64, 64), (64, 96)]
    expected = [sample(model, size) for size in sizes]
    for size in sizes:
        sample(fast, size)
    before = calls(model)
    for size, theirs in zip(sizes, expected, strict=True):
        assert_close(sample(fast, size), theirs)
    assert_fused(model, before)
    assert not (calls(model) - before)["traced"], "a shape that was seen was traced again"
