"""Cases of ``norm_pad_video``."""

from __future__ import annotations

from typing import Any

import torch

from tests.ops.case import Case, Data, Made


def _make(
    shape: tuple[int, int, int, int, int],
    *,
    weight: bool = True,
    bias: bool = False,
    modulated: int = 0,
    lead: int = 0,
    channels_last: bool = True,
    **options: Any,
) -> Any:
    def make(dtype: torch.dtype, device: torch.device) -> Made:
        data = Data(dtype, device)
        arguments: dict[str, Any] = {"eps": 1e-8, **options}
        if weight:
            arguments["weight"] = data.normal(shape[1], mean=1.0, std=0.2)
        if bias:
            arguments["bias"] = data.normal(shape[1])
        if modulated:
            arguments |= {
                "factor": data.normal(modulated, shape[1], mean=1.0, std=0.2),
                "shift": data.normal(modulated, shape[1]),
            }
        if lead:
            times, pad = options.get("times", (1, 1, 1)), options.get("pad", (0,) * 6)
            size = [shape[3 + dim] * times[1 + dim] + pad[2 + 2 * dim] + pad[3 + 2 * dim] for dim in range(2)]
            arguments["lead"] = data.normal(shape[0], shape[1], lead, *size, channels_last=not channels_last)
        return (data.normal(*shape, channels_last=channels_last),), arguments

    return make


CASES = [
    Case("norm-silu-lead", _make((1, 24, 3, 5, 4), act="silu", lead=2)),
    Case("norm", _make((2, 96, 2, 3, 3), weight=False)),
    Case("biased", _make((1, 24, 3, 5, 4), bias=True, act="silu", pad=(2, 0, 1, 1, 1, 1), lead=1)),
    Case("biased-without-norm", _make((2, 16, 2, 3, 4), eps=None, weight=False, bias=True, pad=(2, 0, 0, 0, 0, 0))),
    Case("modulated", _make((2, 16, 2, 3, 4), weight=False, modulated=2, act="silu", pad=(2, 0, 0, 0, 0, 0))),
    Case(
        "factor-alone", _make((2, 16, 2, 3, 4), eps=None, weight=False, modulated=1, act="silu", pad=(2, 0, 1, 1, 1, 1))
    ),
    Case("reflected", _make((1, 16, 2, 4, 5), act="silu", pad=(1, 1, 1, 1, 2, 1), edge="reflect")),
    Case(
        "pad-alone", _make((2, 8, 2, 3, 4), eps=None, weight=False, pad=(2, 0, 1, 1, 1, 1), lead=1, channels_last=False)
    ),
    Case("repeated", _make((1, 8, 3, 3, 4), eps=None, weight=False, times=(2, 2, 2), pad=(1, 0, 1, 1, 1, 1))),
    Case(
        "repeated-first-once", _make((1, 7, 3, 2, 4), eps=None, weight=False, times=(2, 1, 2), pad=(-1, 0, 0, 0, 0, 0))
    ),
]
GPU_CASES = [
    Case("wan-480p", _make((1, 96, 4, 480, 832), act="silu", lead=2)),
    Case("wan-240p", _make((1, 192, 4, 240, 416), act="silu", lead=2)),
    Case("ltx", _make((1, 128, 121, 128, 192), weight=False, bias=True, act="silu", pad=(2, 0, 0, 0, 0, 0))),
    Case(
        "hunyuan",
        _make((1, 128, 16, 256, 256), act="silu", weight=False, modulated=1, eps=None, pad=(2, 0, 1, 1, 1, 1)),
    ),
]
