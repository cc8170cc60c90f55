"""Cases of ``gated_sum``."""

from __future__ import annotations

import torch

from tests.ops.case import Case, Data, Made, Make


def _make(
    shape: tuple[int, int, int],
    residual: bool = True,
    act: str = "none",
    images: int | None = None,
    parts: tuple[int, int] = (1, 1),
    views: bool = False,
) -> Make:
    """``images``: of how many the gate has rows; None: of each. ``parts``: how many rows an image has, and how many
    tokens have one. ``views``: all are parts of others.
    """

    def make(dtype: torch.dtype, device: torch.device) -> Made:
        data, channels = Data(dtype, device), shape[-1]

        def rows(count: int, length: int) -> torch.Tensor:
            return data.normal(count, length, channels * (3 if views else 1))[..., -channels:]

        gate = rows(shape[0] if images is None else images, parts[0])
        return (rows(*shape[:2]), gate, rows(*shape[:2]) if residual else None, act, parts[1]), {}

    return make


CASES = [
    Case("gated", _make((2, 5, 96))),
    Case("one-for-all-images", _make((3, 4, 64), images=1)),
    Case("by-token", _make((2, 5, 96), parts=(5, 1))),
    Case("by-token-for-all-images", _make((2, 5, 33), images=1, parts=(5, 1))),
    Case("by-frame", _make((2, 6, 96), parts=(3, 2))),
    Case("by-frame-and-what-is-left", _make((2, 7, 48), images=1, parts=(2, 3), views=True)),
    Case("fewer-tokens-than-rows", _make((2, 5, 96), parts=(4, 2))),
    Case("views", _make((2, 3, 48), parts=(3, 1), views=True)),
    Case("two-blocks", _make((1, 3, 1100))),
    Case("sigmoid", _make((2, 5, 96), residual=False, act="sigmoid", parts=(5, 1), views=True)),
    Case("sigmoid-and-residual", _make((2, 5, 96), act="sigmoid")),
    Case("no-residual", _make((2, 5, 96), residual=False)),
    Case("no-images", _make((0, 5, 32))),
]
GPU_CASES = [
    Case("ltxv-2x4992x2048", _make((2, 4992, 2048))),
    Case("qwen-edit-1x8192x3072", _make((1, 8192, 3072), parts=(2, 4096))),
    Case("krea-1x4196x6144-sigmoid", _make((1, 4196, 6144), False, "sigmoid", parts=(4196, 1), views=True)),
]
