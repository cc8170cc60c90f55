"""Cases of ``linear`` with a residual."""

from __future__ import annotations

import torch

from tests.ops.case import Case, Data, Made, Make

# M, N, K: the attentions' output layers and the feed-forward layers of SDXL at 1024 x 1024 and SD1.5 at 512 x 512; one
# odd M
SHAPES = [
    (2048, 1280, 1280),
    (2048, 1280, 5120),
    (8192, 640, 640),
    (8192, 640, 2560),
    (8192, 320, 320),
    (128, 1280, 1280),
    (130, 1280, 5120),
    # the embedding of the timestep and the sizes, and what all blocks project from it
    *((rows, 1280, 2816) for rows in (1, 2, 3, 8)),
    (2, 1280, 320),
    (2, 13760, 1280),
]


def _make(shape: tuple[int, ...], features: int, *, bias: bool = True) -> Make:
    def make(dtype: torch.dtype, device: torch.device) -> Made:
        data = Data(dtype, device)
        weight = data.normal(features, shape[-1], std=shape[-1] ** -0.5)
        return (
            data.normal(*shape),
            weight,
            data.normal(features) if bias else None,
            "none",
            False,
            data.normal(*shape[:-1], features),
        ), {}

    return make


def _views(tokens: int) -> Make:
    """x and weight with gaps between their rows, each beginning on 16 bytes."""

    def make(dtype: torch.dtype, device: torch.device) -> Made:
        data = Data(dtype, device)
        x, weight = data.normal(2, tokens, 96)[..., 16:80], data.normal(48, 80, std=0.1)[:, 8:72]
        return (x, weight, data.normal(64)[16:], "none", False, data.normal(2, tokens, 48)), {}

    return make


def _unaligned(tokens: int) -> Make:
    """Nothing begins on 16 bytes."""

    def make(dtype: torch.dtype, device: torch.device) -> Made:
        data = Data(dtype, device)
        x, weight = (
            data.normal(2 * tokens * 64 + 1)[1:].view(2, tokens, 64),
            data.normal(48 * 64 + 1, std=0.1)[1:].view(48, 64),
        )
        return (
            x,
            weight,
            data.normal(49)[1:],
            "none",
            False,
            data.normal(2 * tokens * 48 + 3)[3:].view(2, tokens, 48),
        ), {}

    return make


def _strided(tokens: int) -> Make:
    """An x that no view makes 2-D, and a residual that isn't contiguous."""

    def make(dtype: torch.dtype, device: torch.device) -> Made:
        data = Data(dtype, device)
        x, residual = data.normal(tokens, 3, 64).transpose(0, 1), data.normal(3, 48, tokens).transpose(1, 2)
        return (x, data.normal(48, 64, std=0.1), data.normal(48), "none", False, residual), {}

    return make


CASES = [
    Case("tokens", _make((2, 9, 64), 48)),
    Case("no-bias", _make((2, 9, 64), 48, bias=False)),
    Case("image", _make((2, 3, 5, 64), 64)),
    Case("one-row", _make((64,), 48)),
    Case("two-rows", _make((2, 64), 320)),
    Case("odd-five-rows-no-bias", _make((5, 1, 1544), 37, bias=False)),
    Case("odd-eight-rows", _make((8, 320), 41)),
    Case("odd", _make((3, 5, 33), 71)),
    Case("views", _views(9)),
    Case("unaligned", _unaligned(9)),
    Case("strided", _strided(5)),
    Case("few-views", _views(2)),
    Case("few-unaligned", _unaligned(2)),
    Case("few-strided", _strided(2)),
    Case("empty", _make((0, 7, 64), 48)),
]

GPU_CASES = [
    Case(f"{m}x{n}x{k}{'' if bias else '-no-bias'}", _make((m, k), n, bias=bias))
    for m, n, k in SHAPES
    for bias in (True, False)
]
