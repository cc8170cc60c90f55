"""Cases of ``add_low_rank``: one LoRA and several, weights that are no multiple of a tile, a convolution's, matrices in
float32.
"""

from __future__ import annotations

import torch

from tests.ops.case import Case, Data, Made, Make


def _case(shape: tuple[int, ...], factors: tuple[float, ...], wide: bool = False) -> Make:
    def make(dtype: torch.dtype, device: torch.device) -> Made:
        data, ranks = Data(dtype, device), 16 * len(factors)
        weight = data.normal(*shape)
        kind = torch.float32 if wide else dtype
        up, down = data.normal(shape[0], ranks, dtype=kind), data.normal(ranks, weight[0].numel(), dtype=kind)
        return (weight, up, down, torch.tensor(factors, device=device).repeat_interleave(16)), {}

    return make


CASES = [
    Case("one", _case((64, 128), (0.1,))),
    Case("several, no multiples of a tile", _case((70, 150), (0.1, -0.5, 0.02, 0.0))),
    Case("a convolution's, in float32", _case((24, 16, 3, 3), (0.3, 0.3), True)),
]
GPU_CASES = [Case("a weight of Flux's", _case((12288, 3072), (0.1, 0.1, 0.2, 0.3)))]
