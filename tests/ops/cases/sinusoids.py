"""Cases of ``sinusoids``."""

from __future__ import annotations

import math

import torch

from tests.ops.case import Case, Made, Make


def _make(
    numbers: list[float],
    count: int,
    kind: torch.dtype | None = None,
    *,
    sines_first: bool = False,
    copies: int = 1,
    line: bool = False,
) -> Make:
    """``numbers`` as ``kind`` (None: the case's own dtype),
    each in turn for ``copies`` rows without memory of its own.
    """

    def make(dtype: torch.dtype, device: torch.device) -> Made:
        x = torch.tensor(numbers, device=device).to(kind or dtype)[:, None]
        frequencies = torch.exp(-math.log(10000.0) * torch.arange(count, device=device) / max(1, count))
        return (
            x.expand(copies, 1) if copies > 1 else x,
            frequencies if line else frequencies[None],
            sines_first,
            dtype,
        ), {}

    return make


GPU_CASES = [
    Case("2-timesteps", _make([999, 1], 160, torch.int64)),
    Case("12-sizes", _make([1024, 1024, 0, 0, 1024, 1024] * 2, 128)),
]

CASES = [
    Case("cosines-first", _make([999, 1], 160, torch.int64)),
    Case("sines-first", _make([999, 1], 160, torch.int64, sines_first=True)),
    Case("one-timestep-for-all", _make([501], 160, torch.int64, copies=3)),
    Case("fractions", _make([998.5, 0.25, 13.75], 160, torch.float32, line=True)),
    Case("sizes", _make([1024, 768, 0, 64], 128)),
    Case("odd", _make([3, 5, 7], 33)),
    Case("negative", _make([-3, -500], 16, torch.float32)),
    Case("no-row", _make([], 16)),
    Case("no-frequency", _make([1, 2], 0)),
]
