"""Cases of ``quantise``."""

from __future__ import annotations

import torch

from tests.ops.case import Case, Data, Made, Make


def _rows(shape: tuple[int, ...], rotate: int = 0, outlier: float = 1.0, gap: int = 0) -> Make:
    def make(dtype: torch.dtype, device: torch.device) -> Made:
        x = Data(dtype, device).normal(*shape[:-1], shape[-1] + gap)[..., : shape[-1]]
        x[..., 3] *= outlier
        x[..., -1, :] = 0
        return (x, torch.int8, None, rotate), {}

    return make


def _tensor(shape: tuple[int, ...], number: torch.dtype, scale: float) -> Make:
    def make(dtype: torch.dtype, device: torch.device) -> Made:
        return (Data(dtype, device).normal(*shape, std=3.0), number, torch.tensor(scale, device=device)), {}

    return make


def _made(
    shape: tuple[int, ...],
    act: str | None = None,
    gated: bool = False,
    front: int = 0,
    number: torch.dtype = torch.int8,
    rotate: int = 0,
    begin: int = 0,
    halves: bool = False,
    by_row: bool = False,
) -> Make:
    """``begin``: rows that x, and what lies in front, leave out of each batch.

    ``halves``: x and what it gates are those of one tensor. ``by_row``: as torchao does it.
    """

    def make(dtype: torch.dtype, device: torch.device) -> Made:
        data = Data(dtype, device)
        *batch, rows, width = shape
        x = data.normal(*batch, begin + rows, width * (1 + halves), std=2.0)[..., begin:, :]
        x, other = x.chunk(2, -1) if halves else (x, data.normal(*shape))
        before = data.normal(*batch, begin + rows, front)[..., begin:, :] if front else None
        scale = None if number is torch.int8 or by_row else torch.tensor(0.02, device=device)
        return (x, number, scale, rotate, act, other if gated else None, before, by_row and number is torch.int8), {}

    return make


#: one of some hundred numbers, between two of e4m3's, that rounds to the other, its activation being off by its last
#: bit
FLIP = 3e-3
CASES = [
    Case("rows-256", _rows((2, 5, 256))),
    Case("rows-odd-90", _rows((7, 90))),
    Case("rows-with-gaps", _rows((3, 4, 64), gap=32)),
    Case("rotated-256", _rows((2, 3, 512), rotate=256, outlier=50.0)),
    Case("rotated-64", _rows((5, 192), rotate=64, outlier=50.0)),
    Case("e4m3", _tensor((2, 5, 64), torch.float8_e4m3fn, 0.02)),
    Case("e4m3-saturated", _tensor((5, 64), torch.float8_e4m3fn, 0.002)),
    Case("e5m2-scale-1", _tensor((3, 48), torch.float8_e5m2, 1.0)),
    Case("gelu-tanh", _made((2, 5, 96), "gelu_tanh")),
    Case("gelu-rotated", _made((5, 192), "gelu", rotate=64)),
    Case("silu-one-row", _made((1, 64), "silu")),
    Case("swiglu", _made((2, 5, 80), "silu", gated=True)),
    Case("swiglu-halves", _made((2, 5, 64), "silu", gated=True, halves=True, rotate=16)),
    Case("sigmoid", _made((2, 5, 64), "sigmoid", gated=True, halves=True)),
    Case("gated-alone", _made((7, 40), gated=True)),
    Case("gelu-long-rows", _made((3, 2880), "gelu_tanh")),
    Case("swiglu-long-rows-rotated", _made((3, 2560), "silu", gated=True, rotate=256)),
    Case("in-front-long-rows-rotated", _made((3, 2624), "gelu_tanh", front=448, rotate=64)),
    Case("in-front", _made((2, 4, 96), "gelu_tanh", front=32)),
    Case("in-front-odd", _made((5, 50), "gelu_tanh", front=23)),
    Case("in-front-and-gated", _made((2, 4, 48), "silu", gated=True, front=16, rotate=64)),
    Case("some-rows-of-each", _made((3, 4, 64), begin=3)),
    Case("some-rows-of-each-in-front", _made((2, 4, 48), "gelu_tanh", front=16, begin=3)),
    Case("by-range", _made((2, 5, 96), by_row=True)),
    Case("by-range-gelu-in-front-long-rows", _made((3, 2624), "gelu", front=448, by_row=True)),
    Case("e4m3-by-row", _made((2, 5, 96), number=torch.float8_e4m3fn, by_row=True), noise=FLIP),
    Case("e5m2-by-row-swiglu", _made((5, 90), "silu", gated=True, number=torch.float8_e5m2, by_row=True), noise=FLIP),
    Case("e4m3-gelu-tanh", _made((2, 5, 64), "gelu_tanh", number=torch.float8_e4m3fn), noise=FLIP),
    Case("e4m3-swiglu-halves", _made((3, 40), "silu", gated=True, halves=True, number=torch.float8_e4m3fn)),
    Case("e4m3-in-front", _made((2, 3, 1100), "gelu_tanh", front=60, number=torch.float8_e4m3fn)),
    Case("e4m3-some-rows-of-each", _made((3, 4, 64), begin=3, number=torch.float8_e4m3fn)),
]
GPU_CASES = [
    Case("flux-gelu", _made((1, 4608, 12288), "gelu_tanh")),
    Case("flux-single", _made((1, 4608, 12288), "gelu_tanh", front=3072)),
    Case("flux-single-e4m3", _made((1, 4608, 12288), "gelu_tanh", front=3072, number=torch.float8_e4m3fn)),
    Case("flux-single-rotated", _made((1, 4608, 12288), "gelu_tanh", front=3072, rotate=256)),
    Case("z-image-swiglu", _made((1, 4320, 10240), "silu", gated=True)),
    Case("qwen-image", _made((2, 6889, 3072), begin=100)),
    Case("flux", _rows((1, 4608, 3072))),
    Case("flux-rotated", _rows((1, 4608, 12288), rotate=256, outlier=50.0)),
    Case("flux-e4m3", _tensor((1, 4608, 3072), torch.float8_e4m3fn, 0.02)),
]
