"""Cases of ``dequantise_blocks``: each of GGUF's types, computed in the result's dtype."""

from __future__ import annotations

import torch

from sfast_core.ops.dequantise_blocks.reference import KINDS
from tests.ops.case import Case, Made, Make

#: Where a block has its scales, if not at its beginning alone.
SCALES = {
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
    "Q4_1": (0, 2),
    "Q5_1": (0, 2),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
}


def blocks(kind: str, count: int, device: torch.device) -> torch.Tensor:
    """Random blocks, with scales as checkpoints have them: anything else may be no number."""
    generator = torch.Generator().manual_seed(len(kind))
    data = torch.randint(0, 256, (count, KINDS[kind].bytes), dtype=torch.uint8, generator=generator)
    for begin in SCALES.get(kind, (0,)):
        data[:, begin : begin + 2] = (torch.rand(count, 1, generator=generator) * 0.02 - 0.005).half().view(torch.uint8)
    return data.to(device)


def _case(kind: str, rows: int, per_row: int) -> Make:
    def make(dtype: torch.dtype, device: torch.device) -> Made:
        shape = (rows, per_row * KINDS[kind].values)
        return (blocks(kind, rows * per_row, device).reshape(rows, -1), kind, shape, dtype, dtype), {}

    return make


CASES = [
    Case(f"{kind} {rows}x{per_row}", _case(kind, rows, per_row))
    for kind in KINDS
    for rows, per_row in ((7, 3), (33, 1))
]
GPU_CASES = [Case(f"{kind} a weight of Flux's", _case(kind, 12288, 3072 // KINDS[kind].values)) for kind in KINDS]
