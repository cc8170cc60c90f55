"""Cases of ``ada_layer_norm``."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tests.ops.case import Case, Data, Made
from tests.ops.shapes import ADA_LAYER_NORM

_Arguments = Made


def _make(
    shape: tuple[int, int, int],
    residual: bool = True,
    gate: bool = True,
    images: int | None = None,
    parts: tuple[int, int] = (1, 1),
    views: bool = False,
    bias: bool = False,
    affine: bool = False,
) -> Callable[[torch.dtype, torch.device], _Arguments]:
    """``images``: of how many scale, shift and gate have rows; None: of each. ``parts``: how many rows an image has,
    and how many tokens have one. ``views``: rows with gaps between them. ``affine``: the norm has weights.
    """

    def make(dtype: torch.dtype, device: torch.device) -> _Arguments:
        data = Data(dtype, device)
        batch, length, channels = shape
        # as one linear layer gives all of a block's
        packed = data.normal(batch if images is None else images, parts[0], 3 * channels, std=0.4)
        scale, shift, gates = packed.chunk(3, -1)
        x = data.normal(batch, length, 2 * channels)[..., channels:] if views else data.normal(*shape, mean=0.2)
        added = data.normal(batch, length + 1, channels)[:, 1:] if views else data.normal(*shape, std=0.7)
        return (
            x,
            scale,
            shift,
            1e-6,
            added if residual else None,
            gates if residual and gate else None,
            *([data.normal(channels)] if bias else []),
        ), ({"part": parts[1]} if parts[1] > 1 else {}) | (
            {"weight": data.normal(channels, mean=1.0, std=0.3), "bias": data.normal(channels, std=0.3)}
            if affine
            else {}
        )

    return make


CASES = [
    Case("c64", _make((2, 9, 64))),
    Case("c1152", _make((1, 6, 1152))),
    Case("c3072", _make((2, 3, 3072))),
    Case("c8192", _make((1, 2, 8192))),
    Case("no-gate", _make((2, 7, 320), gate=False)),
    Case("no-residual", _make((3, 5, 640), residual=False)),
    Case("bias", _make((2, 7, 320), bias=True)),
    Case("bias-no-gate", _make((2, 7, 33), gate=False, bias=True)),
    Case("one-for-all-images", _make((3, 5, 128), images=1)),
    Case("by-token", _make((2, 5, 96), parts=(5, 1))),
    Case("by-frame", _make((2, 6, 64), bias=True, parts=(3, 2))),
    Case("by-frame-and-what-is-left", _make((2, 7, 48), images=1, parts=(2, 3), views=True)),
    Case("affine", _make((2, 7, 96), affine=True)),
    Case("affine-no-residual", _make((2, 5, 33), residual=False, affine=True)),
    Case("odd", _make((5, 3, 33))),
    Case("odd-long", _make((2, 3, 1531))),
    Case("rows-of-several-images-in-a-program", _make((70, 1, 24))),
    Case("views", _make((2, 7, 48), views=True)),
    Case("view-no-residual", _make((2, 7, 48), residual=False, views=True)),
    Case("empty", _make((0, 7, 64))),
    Case("no-tokens", _make((2, 0, 64), residual=False)),
]

GPU_CASES = [
    *(
        Case(
            f"{model}-{'x'.join(map(str, s.size))}{'' if s.gated else '-no-residual'}", _make(s.size, residual=s.gated)
        )
        for model, shapes in ADA_LAYER_NORM.items()
        for s in shapes
    ),
    Case("qwen-edit-1x8192x3072", _make((1, 8192, 3072), parts=(2, 4096))),
    Case("wan-1x8190x3072-by-frame", _make((1, 8190, 3072), parts=(21, 390))),
    Case("cogvideox-2x17550x3072-affine", _make((2, 17550, 3072), affine=True)),
    Case("past-2-31-elements", _make((1, 2**19 + 3, 4100), gate=False), slow=True),
]
