"""Cases of ``norm_rope``."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tests.ops.case import Case, Data, Made
from tests.ops.shapes import NORM_ROPE

_Arguments = Made


def rotations(length: int, size: int, device: torch.device, images: int = 1) -> torch.Tensor:
    """[images, length, size / 2, 2, 2]: another angle for each image, token and pair."""
    angles = torch.outer(
        torch.arange(1, images * length + 1, device=device), 100 ** -torch.linspace(0, 1, size // 2, device=device)
    )
    cosines, sines = angles.cos(), angles.sin()
    return torch.stack([cosines, -sines, sines, cosines], -1).reshape(images, length, size // 2, 2, 2)


def _make(
    shape: tuple[int, int, int, int],
    behind: int = 0,
    norm: bool = True,
    weights: bool = True,
    images: int = 1,
    packed: bool = False,
    rotate: bool = True,
    wide: bool = False,
    by_head: bool = False,
    narrow: bool = False,
    halves: bool = False,
    offset: float = 0.0,
    angles: bool = False,
) -> Callable[[torch.dtype, torch.device], _Arguments]:
    """``behind``: tokens of a second stream. ``packed``: as a view of queries, keys and values.

    ``wide``: the norm is over all heads.

    ``by_head``: each head has its own rotations. ``narrow``: they are in the dtype of the tokens. ``halves``: of
    elements half a head apart.
    ``offset``: the weights are float32 and less by so much. ``angles``: cosines and sines instead of matrices.
    """

    def make(dtype: torch.dtype, device: torch.device) -> _Arguments:
        data = Data(dtype, device)
        batch, length, heads, size = shape

        def tokens(count: int) -> torch.Tensor:
            return data.normal(batch, count, 3 if packed else 1, heads, size, mean=0.1)[:, :, -1]

        def weight() -> torch.Tensor | None:
            dtype = torch.float32 if offset else None
            return (
                data.normal(size * (heads if wide else 1), mean=1.0 - offset, std=0.3, dtype=dtype)
                if norm and weights
                else None
            )

        second = (tokens(behind), weight()) if behind else ()
        turned = rotations(length + behind, size, device, images) if rotate else None
        if by_head:
            turned = rotations((length + behind) * heads, size, device, images).unflatten(1, (-1, heads))
        if turned is not None and narrow:
            turned = turned.to(dtype)
        if turned is not None and angles:
            turned = turned[..., 0].contiguous()
        return (tokens(length), weight(), turned, 1e-6 if norm else None, *second), {"halves": True} if halves else {
            "offset": offset
        } if offset else {}

    return make


CASES = [
    Case("one-stream", _make((2, 5, 3, 64))),
    Case("two-streams", _make((2, 5, 3, 64), behind=4)),
    Case("heads-of-16", _make((1, 3, 70, 16))),
    Case("heads-of-128", _make((2, 4, 24, 128), behind=3, packed=True)),
    Case("heads-of-256", _make((1, 4, 6, 256))),
    Case("no-weights", _make((2, 5, 3, 64), behind=4, weights=False)),
    Case("no-norm", _make((2, 5, 3, 64), norm=False)),
    Case("no-norm-two-streams", _make((2, 5, 3, 64), behind=4, norm=False)),
    Case("joined", _make((2, 5, 3, 64), behind=4, norm=False, packed=True, rotate=False)),
    Case("normed-and-joined", _make((2, 5, 3, 64), behind=4, packed=True, rotate=False)),
    Case("other-rotations-for-each-image", _make((3, 5, 2, 32), behind=2, images=3)),
    Case("packed", _make((2, 5, 3, 64), packed=True)),
    Case("over-all-heads", _make((2, 5, 3, 64), wide=True, packed=True)),
    Case("over-all-heads-two-streams", _make((2, 3, 5, 16), behind=2, wide=True)),
    Case("over-all-heads-not-rotated", _make((2, 3, 5, 16), wide=True, rotate=False)),
    Case("rotations-by-head", _make((2, 5, 3, 32), by_head=True)),
    Case("rotations-by-head-and-image", _make((2, 5, 3, 32), behind=2, by_head=True, images=2, narrow=True, wide=True)),
    Case("rotations-in-the-tokens-dtype", _make((2, 5, 3, 64), behind=4, narrow=True)),
    Case("halves", _make((2, 5, 3, 64), behind=4, halves=True)),
    Case("angles", _make((2, 5, 3, 64), behind=4, angles=True)),
    Case("angles-halves", _make((2, 5, 3, 64), narrow=True, halves=True, angles=True)),
    Case("angles-by-image", _make((3, 5, 2, 32), images=3, narrow=True, angles=True)),
    Case("angles-by-head", _make((2, 5, 3, 32), behind=2, by_head=True, narrow=True, wide=True, angles=True)),
    Case("angles-by-head-and-image", _make((2, 5, 3, 32), by_head=True, images=2, wide=True, angles=True)),
    Case("angles-of-heads-of-96", _make((2, 3, 3, 96), wide=True, by_head=True, angles=True)),
    Case("halves-over-all-heads", _make((2, 5, 3, 64), wide=True, narrow=True, halves=True)),
    Case("heads-of-120", _make((2, 3, 5, 120), behind=2)),
    Case("heads-of-96-over-all-by-head", _make((2, 3, 3, 96), wide=True, by_head=True)),
    Case("weights-less-one", _make((2, 5, 3, 64), behind=4, offset=1.0)),
    Case("weights-less-one-over-all-heads", _make((2, 5, 3, 32), wide=True, offset=1.0)),
    Case("one-token", _make((1, 1, 1, 64))),
    Case("no-images", _make((0, 5, 3, 64))),
]

GPU_CASES = [
    Case("qwen-1x6889x24x128-and-100", _make((1, 100, 24, 128), 6889, packed=True, narrow=True)),
    Case("wan-1x32760x40x128", _make((1, 32760, 40, 128), packed=True, wide=True)),
    Case("ltxv-2x4992x32x64", _make((2, 4992, 32, 64), packed=True, wide=True, by_head=True, images=2, narrow=True)),
    Case(
        "ltxv-2x4992x32x64-angles",
        _make((2, 4992, 32, 64), packed=True, wide=True, by_head=True, narrow=True, angles=True),
    ),
    Case(
        "ltx2-2x4992x32x128-angles",
        _make((2, 4992, 32, 128), packed=True, wide=True, by_head=True, narrow=True, angles=True),
    ),
    Case("omnigen-2x4296x21x120", _make((2, 4296, 21, 120), packed=True)),
    Case("krea-1x4196x48x128", _make((1, 4196, 48, 128), packed=True, offset=1.0)),
    Case("halves-2x4096x24x128", _make((2, 4096, 24, 128), packed=True, halves=True)),
    *(
        Case(
            f"{model}-{'x'.join(map(str, s.size))}{f'-and-{s.behind}' if s.behind else ''}",
            _make(s.size, s.behind, packed=True),
        )
        for model, shapes in NORM_ROPE.items()
        for s in shapes
    ),
    Case("sd3-2x4096x24x64-and-333-joined", _make((2, 4096, 24, 64), 333, norm=False, packed=True, rotate=False)),
]
