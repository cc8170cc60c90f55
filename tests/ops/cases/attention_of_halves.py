"""Cases of ``attention_of_halves``."""

from __future__ import annotations

from typing import Any

import torch

from tests.ops.case import Case, Data, Made, Make


def _make(batch: int, heads: int, tokens: int, depth: int, same: bool = True, **options: Any) -> Make:
    """Views of one packed projection; ``same``: its second half is its first."""

    def make(dtype: torch.dtype, device: torch.device) -> Made:
        packed = Data(dtype, device).normal(batch, tokens, 3, heads, depth)
        if same:
            packed[batch // 2 :] = packed[: batch // 2]
        return tuple(part.transpose(1, 2) for part in packed.unbind(2)), dict(options)

    return make


CASES = [
    *(
        case
        for depth in (40, 64)
        for case in (
            Case(f"head-{depth}", _make(2, 3, 300, depth)),
            Case(f"head-{depth}-unlike", _make(2, 3, 300, depth, same=False)),
            Case(f"head-{depth}-two-images", _make(4, 2, 257, depth, scale=0.2)),
            Case(f"head-{depth}-pairs-for-half", _make(2, 10, 1100, depth)),
        )
    ),
]

# B, H, L, D: SD1.5 at 512 x 512 and 768 x 768, and SD2 at 768 x 768.
SHAPES = [(2, 8, 4096, 40), (2, 8, 9216, 40), (2, 5, 9216, 64)]

GPU_CASES = [
    Case(f"{b}x{h}x{tokens}-head-{d}{'' if same else '-unlike'}", _make(b, h, tokens, d, same))
    for b, h, tokens, d in SHAPES
    for same in (True, False)
]
