"""Cases of ``scaled_glu``."""

from __future__ import annotations

import torch

from sfast_core.ops.quantise import quantise
from tests.ops.case import Case, Data, Made, Make
from tests.ops.cases.scaled_linear import LONG_SUM, SHORT_SUM

E4M3 = torch.float8_e4m3fn


def _case(
    shape: tuple[int, ...],
    width: int,
    act: str = "silu",
    number: torch.dtype = torch.int8,
    bias: bool = False,
    packed: bool = False,
) -> Make:
    """``packed``: value and gate are halves of one weight."""

    def make(dtype: torch.dtype, device: torch.device) -> Made:
        data = Data(dtype, device)
        given = None if number is torch.int8 else torch.tensor(0.002, device=device)
        weight, scale = quantise(data.normal(2 * width, shape[-1], std=0.1, dtype=torch.float32), number, given)
        halves = weight.chunk(2) if packed else [half.clone() for half in weight.chunk(2)]
        scales = scale.chunk(2) if scale.numel() > 1 else (scale, scale)
        x, input_scale = quantise(data.normal(*shape), number, None if given is None else given * 5)
        biases = (data.normal(width), data.normal(width)) if bias else (None, None)
        return (x, halves[0], scales[0], halves[1], scales[1], *biases, input_scale, dtype, act), {}

    return make


CASES = [
    Case("int8", _case((2, 5, 64), 48)),
    Case("int8-bias-gelu", _case((9, 64), 32, "gelu", bias=True)),
    Case("int8-packed-tanh", _case((140, 592), 264, "gelu_tanh", packed=True)),
    Case("e4m3", _case((2, 5, 64), 48, number=E4M3), noise=2 * SHORT_SUM),
    Case("e4m3-packed", _case((33, 128), 72, number=E4M3, bias=True, packed=True), noise=2 * SHORT_SUM),
]
GPU_CASES = [
    Case("z-image-1x4320", _case((1, 4320, 3840), 10240)),
    Case("z-image-1x4320-e4m3", _case((1, 4320, 3840), 10240, number=E4M3), noise=2 * LONG_SUM),
    Case("flux2-klein-1x4608", _case((1, 4608, 3072), 9216, packed=True)),
]
