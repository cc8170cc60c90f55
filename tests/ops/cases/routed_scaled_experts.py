"""Cases of ``routed_scaled_experts``: each format, with a gate and without, experts that nobody chooses, sizes that are no
multiple of a tile.
"""

from __future__ import annotations

import torch

from sfast_core.ops.quantise import quantise
from tests.ops.case import Case, Data, Made, Make
from tests.ops.cases.routed_experts import chosen

E4M3 = torch.float8_e4m3fn


def _case(
    tokens: int,
    sizes: tuple[int, int],
    experts: int,
    choices: int = 2,
    number: torch.dtype = torch.int8,
    quantised: bool = True,
    rotate: int = 0,
    act: str = "gelu",
    gated: bool = False,
    only: int | None = None,
) -> Make:
    """int8's weights have a scale for each output feature, float8's one of an expert."""

    def make(dtype: torch.dtype, device: torch.device) -> Made:
        data, (width, hidden) = Data(dtype, device), sizes
        scores, indices = chosen(data, tokens, experts, choices, only)

        def layer(features: int, depth: int) -> tuple[torch.Tensor, torch.Tensor]:
            plain = data.normal(experts * features, depth, std=depth**-0.5, dtype=torch.float32)
            if number is torch.int8:
                return quantise(plain, number, None, rotate)
            scale = torch.linspace(1, 2, experts, device=device) * depth**-0.5 / 64
            return (plain / scale.repeat_interleave(features)[:, None]).to(number), scale

        first, second = layer(hidden, width), layer(width, hidden)
        gate = layer(hidden, width) if gated else (None, None)
        biases = (None, None) if gated else (data.normal(experts * hidden), data.normal(experts * width))
        x, input_scale, hidden_scale = data.normal(tokens, width), None, None
        if quantised:
            hidden_scale = None if number is torch.int8 else torch.tensor(0.02, device=device)
            x, input_scale = quantise(x, number, hidden_scale, rotate)
        layers = (*first, biases[0], *second, biases[1], experts, input_scale, dtype, act, *gate)
        return (x, indices, scores.to(dtype), *layers, hidden_scale, rotate if quantised else 0), {}

    return make


CASES = [
    Case("int8", _case(130, (64, 96), 4)),
    Case("int8 rotated, a gate, no multiples of a tile", _case(75, (64, 192), 3, rotate=64, act="silu", gated=True)),
    Case(
        "e4m3, experts that nobody chooses", _case(150, (32, 48), 8, number=E4M3, act="gelu_tanh", only=2), noise=1e-3
    ),
    Case("e4m3, a gate", _case(70, (48, 80), 2, number=E4M3, act="silu", gated=True), noise=1e-3),
    Case("e5m2, one choice of two", _case(33, (48, 32), 2, 1, torch.float8_e5m2, act="relu"), noise=2e-3),
    Case("e4m3 dequantised", _case(130, (64, 96), 4, number=E4M3, quantised=False)),
    Case("int8 dequantised, a gate", _case(40, (40, 72), 3, quantised=False, act="silu", gated=True)),
]
GPU_CASES = [
    Case("Hunyuan3D 2.1 in int8", _case(8194, (2048, 8192), 8)),
    Case("Hunyuan3D 2.1 in e4m3", _case(8194, (2048, 8192), 8, number=E4M3), noise=4e-3),
    Case("HiDream in int8", _case(8448, (2560, 6912), 4, act="silu", gated=True)),
    Case("HiDream in e4m3", _case(8448, (2560, 6912), 4, number=E4M3, act="silu", gated=True), noise=4e-3),
]
