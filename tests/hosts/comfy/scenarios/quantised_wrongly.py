"""Quantised checkpoints with something wrong in them: what the host makes of it, an error or a picture, is what comes
with the node, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import tiny
import torch
from driver import assert_close, fast_compile, of_weights, report_of, sample

Weights = dict[str, torch.Tensor]
_LAYER = "model.diffusion_model.joint_blocks.1.x_block.mlp.fc1"


def _changed(how: str, change: Callable[[Weights], None], **options: Any) -> Weights:
    weights = tiny.quantised(tiny.state_dict("sd3"), how, **options)
    change(weights)
    return weights


def _configured(weights: Weights, **more: Any) -> None:
    """Other settings of the layer, under the key of the file."""
    key = f"{_LAYER}.comfy_quant"
    settings = json.loads(weights[key].numpy().tobytes()) | more
    weights[key] = torch.tensor(list(json.dumps(settings).encode()), dtype=torch.uint8)


def _outcome(weights: Weights, fast: bool) -> tuple[str, Any, str]:
    """What came of loading and sampling twice: the error's class, or the picture; and the report."""
    try:
        model = of_weights("sd3", weights)
        model = fast_compile.apply(model) if fast else model
        picture = sample(model)
        if fast:
            assert torch.equal(torch.nan_to_num(sample(model)), torch.nan_to_num(picture))
    except AssertionError:
        raise
    except Exception as error:
        return type(error).__name__, None, ""
    return "picture", picture, report_of(model).text() if fast else ""


def _same(how: str, change: Callable[[Weights], None], limit: float = 8e-2, **options: Any) -> str:
    """The host's outcome, which is ours as well. Where there is a picture, calls were fused, or a reason is said."""
    if how not in tiny.formats():
        return "unknown"
    (theirs, plain, _), (mine, picture, report) = (
        _outcome(_changed(how, change, **options), fast) for fast in (False, True)
    )
    assert mine == theirs, (how, mine, theirs)
    if plain is not None:
        strange = ~torch.isfinite(plain)
        assert torch.equal(strange, ~torch.isfinite(picture))
        if not strange.all():
            assert_close(picture.masked_fill(strange, 0), plain.masked_fill(strange, 0), limit)
        assert "fused" in report or "eager" in report, report
    return theirs


def _without_scale(weights: Weights) -> None:
    del weights[f"{_LAYER}.weight_scale"]


def scenario_a_scale_that_is_missing() -> None:
    for how in ("int8_tensorwise", "float8_e4m3fn", "convrot_w4a4", "mxfp8"):
        assert _same(how, _without_scale) != "picture"


def scenario_a_scale_of_another_shape() -> None:
    def one_more(weights: Weights) -> None:
        scale = weights[f"{_LAYER}.weight_scale"]
        weights[f"{_LAYER}.weight_scale"] = torch.cat([scale.flatten(), scale.flatten()[:1]])

    def flat(weights: Weights) -> None:
        weights[f"{_LAYER}.weight_scale"] = weights[f"{_LAYER}.weight_scale"].flatten()

    for how in ("int8_tensorwise", "float8_e4m3fn", "convrot_w4a4"):
        _same(how, one_more)
        _same(how, flat)


def scenario_a_scale_that_is_not_finite() -> None:
    for value in (float("inf"), float("nan")):
        for how in tiny.formats() & {"int8_tensorwise", "float8_e4m3fn"}:
            assert _same(how, lambda weights, value=value: weights[f"{_LAYER}.weight_scale"].fill_(value)) == "picture"  # type: ignore[misc]


def scenario_a_format_that_is_not_known() -> None:
    assert _same("int8_tensorwise", lambda weights: _configured(weights, format="int3_of_tomorrow")) != "picture"
    _same("int8_tensorwise", lambda weights: _configured(weights, version=9, params="none"))


def scenario_a_rotation_that_does_not_divide() -> None:
    _same("int8_tensorwise", lambda weights: _configured(weights, convrot=True, convrot_groupsize=48), rotate=64)


def scenario_other_dtypes_within_a_layer() -> None:
    def bias(weights: Weights) -> None:
        weights[f"{_LAYER}.bias"] = weights[f"{_LAYER}.bias"].to(torch.float8_e4m3fn)

    def scale(weights: Weights) -> None:
        weights[f"{_LAYER}.weight_scale"] = weights[f"{_LAYER}.weight_scale"].to(torch.bfloat16)

    def numbers(weights: Weights) -> None:
        weights[f"{_LAYER}.weight"] = weights[f"{_LAYER}.weight"].to(torch.float32)

    for how in ("int8_tensorwise", "float8_e4m3fn"):
        for change in (bias, scale, numbers):
            _same(how, change)
