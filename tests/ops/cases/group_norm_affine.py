"""Cases of ``group_norm_affine``."""

from __future__ import annotations

import torch

from tests.ops.case import Case, Data, Made, Make


def _make(batch: int, channels: int, groups: int, height: int, width: int, affine: bool = True) -> Make:
    def make(dtype: torch.dtype, device: torch.device) -> Made:
        data = Data(dtype, device)
        x = data.normal(batch, channels, height, width, mean=0.5, std=2, channels_last=True)
        vectors = (data.normal(channels, mean=1, std=0.2), data.normal(channels)) if affine else (None, None)
        return (x, groups, *vectors, 1e-6), {}

    return make


GPU_CASES = [Case("HunyuanVideo, 33 frames of 240x416", _make(1, 256, 32, 33, 240 * 416))]

CASES = [
    Case("two videos of three frames", _make(2, 64, 32, 3, 80)),
    Case("many chunks", _make(1, 64, 8, 5, 1700)),
    Case("odd groups, no weights", _make(1, 21, 3, 13, 11, affine=False)),
    Case("one pixel's", _make(1, 128, 4, 1, 1)),
]
