"""Cases of ``conv2d_act``."""

from __future__ import annotations

import math
from typing import Any

import torch

from tests.ops.case import Case, Data, Made, Make

CPU_IMPLS = ("torch_epilogue",)
ACTS = ("none", "silu", "gelu", "gelu_tanh", "relu")


def _make(
    shape: tuple[int, ...],
    out: int,
    kernel: int | tuple[int, ...] = 3,
    *,
    bias: bool = True,
    residual: str | None = None,
    channel_rows: int = 0,
    act: str = "none",
    groups: int = 1,
    channels_last: bool = True,
    **geometry: Any,
) -> Make:
    """``residual``: None, or its layout, "channels_last" or "contiguous"."""
    taps = (kernel,) * (len(shape) - 2) if isinstance(kernel, int) else kernel

    def make(dtype: torch.dtype, device: torch.device) -> Made:
        data = Data(dtype, device)
        inputs = shape[1] // groups
        x = data.normal(*shape, channels_last=channels_last)
        weight = data.normal(out, inputs, *taps, std=(inputs * math.prod(taps)) ** -0.5, channels_last=channels_last)
        arguments = {"groups": groups, "act": act, "padding": taps[0] // 2, **geometry}
        if residual is not None:
            size = (torch.nn.functional.conv3d if len(shape) == 5 else torch.nn.functional.conv2d)(
                x.to("meta"),
                weight.to("meta"),
                None,
                arguments.get("stride", 1),
                arguments["padding"],
                arguments.get("dilation", 1),
                groups,
            ).shape
            arguments["residual"] = data.normal(*size, channels_last=residual == "channels_last")
        if channel_rows:
            arguments["channel_add"] = data.normal(channel_rows, out)
        return (x, weight, data.normal(out) if bias else None), arguments

    return make


CASES = [
    *(Case(f"3x3-{act}", _make((2, 16, 9, 7), 24, act=act)) for act in ACTS),
    *(Case(f"3x3-residual-{act}", _make((2, 16, 9, 7), 24, residual="channels_last", act=act)) for act in ACTS),
    *(
        Case(f"3x3-all-{act}", _make((2, 16, 9, 7), 24, residual="channels_last", channel_rows=2, act=act))
        for act in ACTS
    ),
    Case("1x1", _make((2, 16, 9, 7), 24, 1, residual="channels_last")),
    Case("1x1-stride-2", _make((2, 16, 9, 7), 24, 1, stride=2, residual="channels_last", act="silu")),
    Case("3x3-stride-2", _make((2, 16, 9, 7), 24, stride=2, act="silu")),
    Case(
        "3x3-stride-2-1-padding-0-1", _make((1, 8, 9, 12), 16, stride=(2, 1), padding=(0, 1), residual="channels_last")
    ),
    Case("3x5-dilation-2", _make((1, 8, 12, 13), 16, (3, 5), dilation=2, padding=(2, 4), residual="channels_last")),
    Case("groups", _make((2, 32, 6, 5), 48, groups=4, residual="channels_last", act="silu")),
    Case("depthwise", _make((2, 24, 6, 5), 24, groups=24, act="relu")),
    Case("nothing-to-add", _make((2, 16, 9, 7), 24, bias=False)),
    Case("no-bias-silu", _make((2, 16, 9, 7), 24, bias=False, act="silu")),
    Case("no-bias-residual", _make((2, 16, 9, 7), 24, bias=False, residual="channels_last")),
    Case("channel-add-shared", _make((3, 16, 5, 5), 24, channel_rows=1)),
    Case("channel-add-own", _make((3, 16, 5, 5), 24, channel_rows=3)),
    Case("residual-contiguous", _make((2, 16, 9, 7), 24, residual="contiguous", act="silu")),
    Case("contiguous", _make((2, 16, 9, 7), 24, residual="contiguous", act="silu", channels_last=False)),
    Case("few-channels-in", _make((2, 4, 9, 7), 24, act="silu")),
    Case("few-channels-out", _make((2, 24, 9, 7), 3)),
    Case("few-of-64", _make((2, 64, 9, 7), 3)),
    Case("few-of-192", _make((1, 192, 17, 33), 8, bias=False)),
    Case("few-of-128-contiguous", _make((3, 128, 8, 16), 4, channels_last=False)),
    Case("odd-channels", _make((1, 7, 5, 6), 149, residual="channels_last", act="silu")),
    Case("split-3x3", _make((2, 64, 5, 4), 24)),
    *(
        Case(f"split-3x3-all-{act}", _make((2, 64, 5, 4), 24, residual="channels_last", channel_rows=2, act=act))
        for act in ACTS
    ),
    Case(
        "split-3x3-contiguous",
        _make((1, 64, 9, 8), 136, residual="contiguous", channels_last=False, channel_rows=1, act="silu"),
    ),
    Case("split-3x3-stride-2", _make((3, 128, 7, 8), 16, stride=2)),
    Case(
        "split-3x5-stride-2-1-padding-0-2", _make((2, 64, 8, 6), 16, (3, 5), stride=(2, 1), padding=(0, 2), bias=False)
    ),
    Case("one-pixel", _make((2, 16, 1, 1), 24, residual="channels_last")),
    Case("video", _make((1, 16, 4, 5, 6), 24, padding=(0, 1, 1), residual="channels_last", act="silu")),
    Case(
        "video-all-stride-2",
        _make(
            (2, 8, 3, 5, 6), 16, (3, 1, 3), stride=(1, 2, 2), padding=(1, 0, 1), channel_rows=2, residual="contiguous"
        ),
    ),
    Case("video-contiguous", _make((1, 8, 3, 4, 5), 8, channels_last=False)),
    Case("empty", _make((0, 16, 9, 7), 24, act="silu")),
]

# B, C, O, H = W: SDXL at 1024 x 1024, SD1.5 at 512 x 512, and the VAE.
SHAPES = [
    (2, 320, 320, 128),
    (2, 640, 640, 64),
    (2, 1280, 1280, 32),
    (2, 320, 320, 64),
    (2, 1280, 1280, 16),
    (1, 128, 128, 1024),
    (1, 512, 512, 256),
]

GPU_CASES = [
    *(Case(f"{b}x{c}x{h}-{o}", _make((b, c, h, h), o)) for b, c, o, h in SHAPES),
    *(Case(f"{b}x{c}x{h}-{o}-residual", _make((b, c, h, h), o, residual="channels_last")) for b, c, o, h in SHAPES),
    *(Case(f"{b}x{c}x{h}-{o}-silu", _make((b, c, h, h), o, act="silu")) for b, c, o, h in SHAPES),
    *(
        Case(f"2x{c}x8-1280{'-residual' * r}", _make((2, c, 8, 8), 1280, residual="channels_last" if r else None))
        for c in (1280, 2560)
        for r in (0, 1)
    ),
    Case("2x1280x16-1280-stride-2", _make((2, 1280, 16, 16), 1280, stride=2)),
    Case("1x1280x8-1280", _make((1, 1280, 8, 8), 1280)),
    Case("conv-in", _make((2, 4, 128, 128), 320)),
    Case("conv-out", _make((2, 320, 128, 128), 4)),
    Case("conv-out-one-pixel", _make((1, 320, 1, 1), 4)),
    Case("conv-out-odd", _make((3, 320, 77, 35), 5)),
    *(
        Case(
            f"video-1x{c}x{t}x{h}-{o}{'-residual' * r}",
            _make((1, c, t, h, w), o, padding=(0, 1, 1), residual="channels_last" if r else None),
        )
        for c, o, t, h, w in ((96, 96, 6, 480, 832), (192, 192, 6, 240, 416), (384, 384, 4, 120, 208))
        for r in (0, 1)
    ),
    Case("vae-conv-out", _make((1, 128, 1024, 1024), 3)),
    Case("downsample", _make((2, 640, 64, 64), 640, stride=2)),
    Case("past-2-31-elements", _make((1, 8, 8192, 4104), 64, 1, residual="channels_last", act="silu"), slow=True),
]
