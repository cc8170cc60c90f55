"""Cases of ``gated_sum``."""

from __future__ import annotations

import torch

from tests.ops.case import Case, Data, Made, Make


def _make(
    shape: tuple[int, int, int],
    residual: bool = True,
    act: str = "none",
    images: int | None = None,
    by_token: bool = False,
    views: bool = False,
) -> Make:
    """``images``: how many rows the gate has; None: one for each image. ``by_token``: each token has its own.
    ``views``: all are parts of others.
    """

    def make(dtype: torch.dtype, device: torch.device) -> Made:
        data, channels = Data(dtype, device), shape[-1]

        def rows(count: int, length: int) -> torch.Tensor:
            return data.normal(count, length, channels * (3 if views else 1))[..., -channels:]

        gate = rows(shape[0] if images is None else images, shape[1] if by_token else 1)
        return (rows(*shape[:2]), gate, rows(*shape[:2]) if residual else None, act), {}

    return make


CASES = [
    Case("gated", _make((2, 5, 96))),
    Case("one-for-all-images", _make((3, 4, 64), images=1)),
    Case("by-token", _make((2, 5, 96), by_token=True)),
    Case("by-token-for-all-images", _make((2, 5, 33), images=1, by_token=True)),
    Case("views", _make((2, 3, 48), by_token=True, views=True)),
    Case("two-blocks", _make((1, 3, 1100))),
    Case("sigmoid", _make((2, 5, 96), residual=False, act="sigmoid", by_token=True, views=True)),
    Case("sigmoid-and-residual", _make((2, 5, 96), act="sigmoid")),
    Case("no-residual", _make((2, 5, 96), residual=False)),
    Case("no-images", _make((0, 5, 32))),
]
GPU_CASES = [
    Case("ltxv-2x4992x2048", _make((2, 4992, 2048))),
    Case("krea-1x4196x6144-sigmoid", _make((1, 4196, 6144), False, "sigmoid", by_token=True, views=True)),
]
