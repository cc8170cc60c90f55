"""Cases of ``ada_rms_norm``."""

from __future__ import annotations

import torch

from tests.ops.case import Case, Data, Made, Make

_Make = Make


def _make(
    shape: tuple[int, ...],
    *given: str,
    images: int | None = None,
    parts: tuple[int, int] = (1, 1),
    views: bool = False,
    wide: bool = False,
    offset: float = 0.0,
) -> _Make:
    """``given`` names the optional tensors that there are; ``images``: of how many scale, shift and gate have rows; None:
    of each. ``parts``: how many rows an image has, and how many tokens have one. ``wide``: the weight is float32.
    """

    def make(dtype: torch.dtype, device: torch.device) -> Made:
        data, channels = Data(dtype, device), shape[-1]
        packed = data.normal(shape[0] if images is None else images, parts[0], 3 * channels, std=0.4)
        tensors = dict(zip(("scale", "shift", "gate"), packed.chunk(3, -1), strict=True))
        tensors["weight"] = data.normal(channels, mean=1.0 - offset, std=0.3, dtype=torch.float32 if wide else None)
        tensors["x_weight"] = data.normal(channels, mean=1.0, std=0.3)
        x = data.normal(*shape[:-1], 2 * channels)[..., channels:] if views else data.normal(*shape, mean=0.2)
        tensors["residual"] = (
            data.normal(shape[0], shape[1] + 1, channels)[:, 1:] if views else data.normal(*shape, std=0.7)
        )
        numbers = ({"part": parts[1]} if parts[1] > 1 else {}) | ({"offset": offset} if offset else {})
        return (x, 1e-6), {name: tensors[name] for name in given} | numbers

    return make


_ALL = ("weight", "scale", "shift", "residual", "gate")
_SANDWICH = ("weight", "scale", "residual", "gate", "x_weight")
CASES = [
    Case("plain", _make((5, 100))),
    Case("weight", _make((2, 3, 64), "weight")),
    Case("weight-in-float32", _make((2, 3, 64), "weight", wide=True)),
    Case("weight-less-one", _make((2, 3, 64), "weight", "scale", wide=True, offset=1.0)),
    Case("all", _make((2, 5, 96), *_ALL)),
    Case("sandwich", _make((2, 5, 160), *_SANDWICH)),
    Case("sandwich-no-gate", _make((6, 96), "weight", "residual", "x_weight")),
    Case("sum", _make((2, 3, 48), "residual")),
    Case("by-token", _make((2, 5, 96), *_ALL, parts=(5, 1))),
    Case("by-token-one-for-all-images", _make((2, 5, 96), *_ALL, parts=(5, 1), images=1)),
    Case("by-frame", _make((2, 6, 96), *_ALL, parts=(3, 2))),
    Case("by-frame-and-what-is-left", _make((2, 7, 48), *_SANDWICH, images=1, parts=(2, 3))),
    Case("one-for-all-images", _make((3, 5, 128), *_ALL, images=1)),
    Case("views", _make((2, 3, 48), *_ALL, views=True)),
    Case("rows-of-several-images-in-a-program", _make((70, 1, 24), *_ALL)),
    Case("four-dimensions", _make((2, 3, 4, 32), "weight", "residual")),
    Case("c3840", _make((1, 3, 3840), *_SANDWICH)),
    Case("no-images", _make((0, 5, 32), *_ALL)),
]
GPU_CASES = [
    Case("z-image-1x4320x3840", _make((1, 4320, 3840), *_SANDWICH)),
    Case("z-image-1x4320x3840-no-residual", _make((1, 4320, 3840), "weight", "scale")),
    Case("krea-1x4196x6144", _make((1, 4196, 6144), "weight", "scale", "shift", wide=True, offset=1.0)),
    Case("ltxv-2x4992x2048", _make((2, 4992, 2048), "scale", "shift", "residual", "gate")),
    Case("ltxv-2x4992x2048-by-token", _make((2, 4992, 2048), "scale", "shift", "residual", "gate", parts=(4992, 1))),
    Case("ltx2-2x4992x4096-by-frame", _make((2, 4992, 4096), "scale", "shift", "residual", "gate", parts=(13, 384))),
    Case("wan-1x32760x5120-plain", _make((1, 32760, 5120), "weight")),
]
