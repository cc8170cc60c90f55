"""Cases of ``upsample_conv2d``."""

from __future__ import annotations

import torch

from tests.ops.case import Case, Data, Made, Make


def _make(
    shape: tuple[int, int, int, int],
    out: int,
    *,
    bias: bool = True,
    channels_last: bool = True,
    weight_channels_last: bool = True,
    weight_mean: float = 0.0,
) -> Make:
    """``weight_mean``: in standard deviations."""

    def make(dtype: torch.dtype, device: torch.device) -> Made:
        data = Data(dtype, device)
        std = (9 * shape[1]) ** -0.5
        x = data.normal(*shape, channels_last=channels_last)
        weight = data.normal(out, shape[1], 3, 3, mean=weight_mean * std, std=std, channels_last=weight_channels_last)
        return (x, weight, data.normal(out) if bias else None), {}

    return make


def _edge(dtype: torch.dtype, device: torch.device) -> Made:
    """The two taps that a phase sums cancel: what is left is far smaller than either, and is not to be lost."""
    (x, weight, bias), _ = _make((2, 16, 6, 5), 24)(dtype, device)
    weight[:, :, 1] = -0.999 * weight[:, :, 2]
    weight[..., 1] = -0.999 * weight[..., 2]
    return (x, weight, bias), {}


CASES = [
    Case("even", _make((2, 16, 8, 8), 24)),
    Case("odd", _make((2, 16, 9, 7), 24)),
    Case("wide", _make((1, 32, 3, 40), 16)),
    Case("tall", _make((1, 32, 33, 2), 16)),
    Case("one-row", _make((2, 16, 1, 9), 24)),
    Case("one-column", _make((2, 16, 9, 1), 24)),
    Case("one-pixel", _make((3, 16, 1, 1), 24)),
    Case("many-images", _make((9, 8, 3, 2), 8)),
    Case("several-blocks", _make((1, 136, 5, 4), 200)),
    Case("fewer-out", _make((1, 64, 6, 5), 8)),
    Case("of-64", _make((2, 64, 6, 5), 24)),
    Case("of-64-no-bias", _make((1, 64, 4, 9), 8, bias=False)),
    Case("of-128", _make((3, 128, 5, 7), 168, weight_mean=1.0)),
    Case("of-64-contiguous", _make((2, 64, 3, 3), 24, channels_last=False, weight_channels_last=False)),
    Case("odd-channels", _make((2, 7, 5, 6), 13)),
    Case("one-channel", _make((2, 1, 5, 6), 1)),
    Case("no-bias", _make((2, 16, 6, 5), 24, bias=False)),
    Case("weights-of-one-sign", _make((2, 16, 6, 5), 24, weight_mean=4.0)),
    Case("taps-that-cancel", _edge),
    Case("contiguous", _make((2, 16, 6, 5), 24, channels_last=False)),
    Case("weight-contiguous", _make((2, 16, 6, 5), 24, weight_channels_last=False)),
    Case("all-contiguous", _make((2, 16, 6, 5), 24, channels_last=False, weight_channels_last=False)),
]

# B, C, H = W; as many channels out. SDXL at 1024 x 1024, SD1.5 at 512 x 512, and the VAE's decoder.
SHAPES = [
    (2, 1280, 32),
    (2, 640, 64),
    (2, 1280, 8),
    (2, 1280, 16),
    (2, 640, 32),
    (1, 512, 128),
    (1, 512, 256),
    (1, 256, 512),
]

GPU_CASES = [
    *(Case(f"{b}x{c}x{h}", _make((b, c, h, h), c)) for b, c, h in SHAPES),
    Case("2x1280x32-no-bias", _make((2, 1280, 32, 32), 1280, bias=False)),
    Case("2x1280x23x29", _make((2, 1280, 23, 29), 1280)),
    Case("2x320x32-640", _make((2, 320, 32, 32), 640)),
]
