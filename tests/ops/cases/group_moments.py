"""Cases of ``group_moments``."""

from __future__ import annotations

import torch

from tests.ops.case import Case, Made, Make


def _make(batch: int, channels: int, groups: int, height: int, width: int, rows: slice = slice(None)) -> Make:
    def make(dtype: torch.dtype, device: torch.device) -> Made:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(batch, channels, height, width, generator=generator) * 2 + 0.5
        x = x.to(device, dtype).contiguous(memory_format=torch.channels_last)
        return (x[:, :, rows], groups), {}

    return make


GPU_CASES = [
    Case("vae-256x1024", _make(1, 256, 32, 512, 1024)),
    Case("stripe", _make(1, 128, 32, 1040, 512, slice(7, 1031))),
]

CASES = [
    Case("small", _make(1, 64, 32, 16, 16)),
    Case("two-images", _make(2, 320, 32, 9, 11)),
    Case("some-rows", _make(1, 64, 8, 40, 24, slice(3, 33))),
    Case("one-row", _make(1, 64, 8, 40, 24, slice(0, 1))),
    Case("odd-groups", _make(1, 21, 3, 13, 11)),
]
