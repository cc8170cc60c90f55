"""Cases of ``conv2d_shortcut``."""

from __future__ import annotations

import torch

from tests.ops.case import Case, Data, Made, Make


def _make(
    shape: tuple[int, int, int, int],
    out: int,
    shortcut: int,
    tail: int = 0,
    kernel: int = 3,
    *,
    bias: bool = True,
    shortcut_bias: bool = True,
    channels_last: bool = True,
) -> Make:
    """``shortcut`` and ``tail``: channels."""

    def make(dtype: torch.dtype, device: torch.device) -> Made:
        data = Data(dtype, device)
        batch, inputs, height, width = shape
        x = data.normal(*shape, channels_last=channels_last)
        weight = data.normal(out, inputs, kernel, kernel, std=(inputs * kernel**2) ** -0.5, channels_last=channels_last)
        begun = data.normal(batch, shortcut, height, width, channels_last=channels_last)
        short_weight = data.normal(out, shortcut + tail, 1, 1, std=(shortcut + tail) ** -0.5)
        biases = [data.normal(out) if there else None for there in (bias, shortcut_bias)]
        rest = (data.normal(batch, tail, height, width, channels_last=channels_last),) if tail else ()
        return (x, weight, biases[0], kernel // 2, begun, short_weight, biases[1], *rest), {}

    return make


CASES = [
    Case("one-part", _make((2, 16, 9, 7), 24, 8)),
    Case("two-parts", _make((2, 16, 9, 7), 24, 8, 32)),
    Case("of-64", _make((2, 64, 9, 8), 24, 64)),
    Case("of-64-and-128", _make((3, 64, 9, 7), 40, 64, 128)),
    Case("more-than-the-taps", _make((1, 64, 12, 11), 8, 640, 320)),
    Case("no-biases", _make((2, 64, 9, 8), 24, 64, bias=False, shortcut_bias=False)),
    Case("one-bias", _make((2, 64, 9, 8), 24, 64, shortcut_bias=False)),
    Case("the-other-bias", _make((2, 64, 9, 8), 24, 64, bias=False)),
    Case("5x5", _make((1, 64, 12, 11), 16, 64, 64, 5)),
    Case("contiguous", _make((2, 64, 9, 8), 24, 64, 64, channels_last=False)),
    Case("few-pixels", _make((2, 64, 8, 8), 24, 64)),
    Case("several-tiles", _make((2, 64, 13, 17), 328, 64, 64)),
]

# B, C = O, H = W, channels of the shortcut and its tail: the decoders of SD1.5 and SDXL and the VAE's.
SHAPES = [
    (2, 320, 128, 640, 320),
    (2, 320, 128, 320, 320),
    (2, 640, 64, 1280, 640),
    (2, 640, 64, 320, 0),
    (2, 1280, 32, 1280, 1280),
    (2, 1280, 32, 640, 0),
    (2, 320, 64, 640, 320),
    (2, 640, 32, 640, 640),
    (2, 1280, 16, 1280, 640),
    (1, 256, 512, 512, 0),
    (1, 128, 1024, 256, 0),
]

GPU_CASES = [
    *(Case(f"{b}x{c}x{h}-{d}" + (f"-{e}" if e else ""), _make((b, c, h, h), c, d, e)) for b, c, h, d, e in SHAPES),
    Case("2x640x52x76-640-320", _make((2, 640, 52, 76), 640, 640, 320)),
]
