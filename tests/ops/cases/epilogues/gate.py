"""Cases of ``linear`` with the gate of GEGLU or SwiGLU."""

from __future__ import annotations

import torch

from tests.ops.case import Case, Data, Made, Make


def _make(shape: tuple[int, ...], inner: int, act: str = "gelu", bias: bool = True, first: bool = False) -> Make:
    def make(dtype: torch.dtype, device: torch.device) -> Made:
        data = Data(dtype, device)
        x = data.normal(*shape)
        # Gates with a spread of 3: both tails of GELU and its minimum are reached.
        weight = data.normal(2 * inner, shape[-1], std=3.0 / shape[-1] ** 0.5)
        return (x, weight, data.normal(2 * inner) if bias else None, act, True), {"gate_first": True} if first else {}

    return make


def _far_tails(dtype: torch.dtype, device: torch.device) -> Made:
    """Gates of +-30 on average, where the normal distribution's tail has ended: the result is the product, or 0."""
    data = Data(dtype, device)
    x, weight = data.normal(33, 64), data.normal(2 * 24, 64, std=0.125)
    weight[24:] *= 30
    return (x, weight, None, "gelu", True), {}


def _closed(act: str) -> Make:
    """Gates of about -30, where GELU is 0 to the last digit and nothing else may come out."""

    def make(dtype: torch.dtype, device: torch.device) -> Made:
        data = Data(dtype, device)
        x, weight, bias = data.normal(5, 64), data.normal(2 * 8, 64, std=0.125), data.normal(2 * 8)
        bias[8:] -= 30
        return (x, weight, bias, act, True), {}

    return make


def _strided(dtype: torch.dtype, device: torch.device) -> Made:
    """x that no view makes 2-D, and rows of the weight that lie further apart than they are long."""
    data = Data(dtype, device)
    x = data.normal(5, 3, 64).transpose(0, 1)
    return (x, data.normal(2 * 48, 96, std=0.3)[:, 8:72], data.normal(2 * 48), "gelu", True), {}


def _misaligned(dtype: torch.dtype, device: torch.device) -> Made:
    """x that begins one element past 16 bytes."""
    data = Data(dtype, device)
    x = data.normal(7 * 32 + 1)[1:].view(7, 32)
    return (x, data.normal(2 * 16, 32, std=0.3), data.normal(2 * 16), "gelu", True), {}


CASES = [
    *(Case(f"{act}", _make((2, 19, 72), 40, act)) for act in ("gelu", "gelu_tanh", "silu")),
    *(Case(f"{act}-no-bias", _make((37, 72), 40, act, bias=False)) for act in ("gelu", "gelu_tanh", "silu")),
    *(Case(f"{act}-odd", _make((3, 5, 33), 71, act)) for act in ("gelu", "gelu_tanh", "silu")),
    *(
        Case(f"{act}-gate-first", _make((2, 19, 72), 40, act, bias, first=True))
        for act, bias in (("gelu", True), ("silu", False), ("silu", True))
    ),
    Case("several-tiles-gate-first", _make((300, 200), 136, "silu", first=True)),
    Case("several-tiles", _make((300, 200), 136)),
    Case("few-columns", _make((130, 64), 8)),
    Case("one-row", _make((64,), 48)),
    Case("far-tails", _far_tails),
    *(Case(f"{act}-closed", _closed(act)) for act in ("gelu", "gelu_tanh", "silu")),
    Case("strided", _strided),
    Case("misaligned", _misaligned),
    Case("empty", _make((0, 7, 64), 48)),
]

# SDXL at 1024 x 1024 and SD1.5 at 512 x 512, a batch of 2.
SHAPES = [
    (8192, 5120, 640),
    (2048, 10240, 1280),
    (8192, 2560, 320),
    (2048, 5120, 640),
    (512, 10240, 1280),
    (128, 10240, 1280),
]

GPU_CASES = [
    *(Case(f"{m}x{n}x{k}", _make((m, k), n // 2)) for m, n, k in SHAPES),
    Case("4099x5136x648", _make((4099, 648), 2568)),
    Case("z-image-4320x20480x3840-silu", _make((1, 4320, 3840), 10240, "silu", bias=False)),
    Case("flux-2-4608x36864x6144-silu-gate-first", _make((1, 4608, 6144), 18432, "silu", bias=False, first=True)),
    Case("4099x5136x648-gelu_tanh-no-bias", _make((4099, 648), 2568, "gelu_tanh", bias=False)),
    Case("past-2-31-elements", _make((2**16 + 1, 16), 2**15), slow=True),
]
