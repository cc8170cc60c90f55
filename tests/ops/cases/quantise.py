"""Cases of ``quantise``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.ops.case import Case, Data

Make = Callable[[torch.dtype, torch.device], tuple[tuple[Any, ...], dict[str, Any]]]


def _rows(shape: tuple[int, ...], rotate: int = 0, outlier: float = 1.0, gap: int = 0) -> Make:
    def make(dtype: torch.dtype, device: torch.device) -> tuple[tuple[Any, ...], dict[str, Any]]:
        x = Data(dtype, device).normal(*shape[:-1], shape[-1] + gap)[..., : shape[-1]]
        x[..., 3] *= outlier
        x[..., -1, :] = 0
        return (x, torch.int8, None, rotate), {}

    return make


def _tensor(shape: tuple[int, ...], number: torch.dtype, scale: float) -> Make:
    def make(dtype: torch.dtype, device: torch.device) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (Data(dtype, device).normal(*shape, std=3.0), number, torch.tensor(scale, device=device)), {}

    return make


CASES = [
    Case("rows-256", _rows((2, 5, 256))),
    Case("rows-odd-90", _rows((7, 90))),
    Case("rows-with-gaps", _rows((3, 4, 64), gap=32)),
    Case("rotated-256", _rows((2, 3, 512), rotate=256, outlier=50.0)),
    Case("rotated-64", _rows((5, 192), rotate=64, outlier=50.0)),
    Case("e4m3", _tensor((2, 5, 64), torch.float8_e4m3fn, 0.02)),
    Case("e4m3-saturated", _tensor((5, 64), torch.float8_e4m3fn, 0.002)),
    Case("e5m2-scale-1", _tensor((3, 48), torch.float8_e5m2, 1.0)),
]
GPU_CASES = [
    Case("flux", _rows((1, 4608, 3072))),
    Case("flux-rotated", _rows((1, 4608, 12288), rotate=256, outlier=50.0)),
    Case("flux-e4m3", _tensor((1, 4608, 3072), torch.float8_e4m3fn, 0.02)),
]
