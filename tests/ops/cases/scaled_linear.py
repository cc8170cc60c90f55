"""Cases of ``scaled_linear``: each row of the table in its docstring."""

from __future__ import annotations

import torch

from sfast_core.ops.quantise import quantise
from tests.ops.case import Case, Data, Made, Make


def _case(
    shape: tuple[int, ...],
    width: int,
    number: torch.dtype = torch.int8,
    rows: bool = True,
    bias: bool = True,
    quantised: bool = True,
    rotate: int = 0,
) -> Make:
    """``rows``: int8's weight has a scale for each output feature."""

    def make(dtype: torch.dtype, device: torch.device) -> Made:
        data = Data(dtype, device)
        x, plain = data.normal(*shape), data.normal(width, shape[-1], std=0.1, dtype=torch.float32)
        one = torch.tensor(0.002, device=device)
        if number is not torch.int8:
            weight, scale = quantise(plain, number, one)
        elif rows:
            weight, scale = quantise(plain, number, None, rotate)
        else:
            weight, scale = (plain / one).round().clamp(-127, 127).to(number), one
        input_scale = None
        if quantised:
            x, input_scale = quantise(
                x, number, None if number is torch.int8 else torch.tensor(0.01, device=device), rotate
            )
        return (
            x,
            weight,
            scale,
            data.normal(width) if bias else None,
            input_scale,
            dtype,
            0 if quantised else rotate,
        ), {}

    return make


#: Tensor cores keep about 14 bits of a sum of float8, so its error grows as the root of the depth: 3.7e-4 was measured
#: at 592 (H100).
SHORT_SUM, MIDDLE_SUM, LONG_SUM = 3e-4, 6e-4, 2e-3
CASES = [
    Case("int8-rows", _case((2, 5, 64), 48)),
    Case("int8-one-scale-no-bias", _case((9, 64), 32, rows=False, bias=False)),
    Case("int8-rotated", _case((2, 3, 256), 40, rotate=64)),
    Case("int8-odd", _case((7, 72), 31)),
    Case("int8-one-row", _case((1, 128), 64)),
    Case("e4m3", _case((2, 5, 64), 48, torch.float8_e4m3fn), noise=SHORT_SUM),
    Case("e4m3-long-no-bias", _case((140, 592), 272, torch.float8_e4m3fn, bias=False), noise=MIDDLE_SUM),
    Case("int8-long", _case((140, 592), 264)),
    Case("e5m2-no-bias", _case((9, 64), 32, torch.float8_e5m2, bias=False), noise=SHORT_SUM),
    Case("int8-full-precision", _case((2, 5, 64), 48, quantised=False)),
    Case("int8-full-precision-rotated", _case((5, 256), 40, quantised=False, rotate=64)),
    Case("e4m3-full-precision", _case((2, 5, 64), 48, torch.float8_e4m3fn, quantised=False)),
]
GPU_CASES = [
    Case("flux-up", _case((1, 4608, 3072), 12288)),
    Case("flux-down-rotated", _case((1, 4608, 12288), 3072, rotate=256)),
    Case("flux-e4m3", _case((1, 4608, 3072), 12288, torch.float8_e4m3fn), noise=LONG_SUM),
    Case("modulation", _case((1, 3072), 18432)),
    Case("flux-full-precision", _case((1, 4608, 3072), 3072, torch.float8_e4m3fn, quantised=False)),
]
