"""Cases of ``norm_quantise``."""

from __future__ import annotations

import torch

from tests.ops.case import Case, Data, Made, Make
from tests.ops.cases.quantise import FLIP

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
_Make = Make


def _make(
    shape: tuple[int, ...],
    norm: str,
    *given: str,
    number: torch.dtype = torch.int8,
    rotate: int = 0,
    images: int | None = None,
    parts: tuple[int, int] = (1, 1),
    views: bool = False,
    by_row: bool = False,
    wide: bool = False,
    offset: float = 0.0,
) -> _Make:
    """``given`` names the optional tensors that there are; ``images``: of how many scale, shift and gate have rows; None:
    of each. ``parts``: how many rows an image has, and how many tokens have one. ``by_row``: as torchao does it.
    ``wide``: the weight is float32.
    """

    def make(dtype: torch.dtype, device: torch.device) -> Made:
        data, channels = Data(dtype, device), shape[-1]
        # as one linear layer gives all of a block's
        packed = data.normal(shape[0] if images is None else images, parts[0], 3 * channels, std=0.4)
        tensors = dict(zip(("scale", "shift", "gate"), packed.chunk(3, -1), strict=True))
        for name in ("weight", "x_weight"):
            tensors[name] = data.normal(channels, mean=1.0 - offset, std=0.3, dtype=torch.float32 if wide else None)
        for name in ("bias", "x_bias"):
            tensors[name] = data.normal(channels, std=0.3)
        x = data.normal(*shape[:-1], 2 * channels)[..., channels:] if views else data.normal(*shape, mean=0.2)
        x[..., 3] *= 20  # an outlier, which a rotation spreads
        tensors["residual"] = (
            data.normal(shape[0], shape[1] + 1, channels)[:, 1:] if views else data.normal(*shape, std=0.7)
        )
        input_scale = None if number is torch.int8 or by_row else torch.tensor(0.02, device=device)
        more = {"by_range": True} if by_row and number is torch.int8 else {}
        more |= ({"part": parts[1]} if parts[1] > 1 else {}) | ({"offset": offset} if offset else {})
        return (x, norm, 1e-6, number, input_scale, rotate), {**{name: tensors[name] for name in given}, **more}

    return make


_ADA = ("scale", "shift", "residual", "gate")
_SANDWICH = ("weight", "scale", "residual", "gate", "x_weight")
CASES = [
    Case("layer", _make((7, 90), "layer")),
    Case("layer-affine-sum", _make((2, 3, 64), "layer", "weight", "bias", "residual", "x_bias")),
    Case("ada-256", _make((2, 5, 256), "layer", *_ADA)),
    Case("ada-bias", _make((2, 5, 96), "layer", *_ADA, "x_bias")),
    Case("ada-no-residual", _make((2, 5, 96), "layer", "scale", "shift")),
    Case("ada-rotated-256", _make((2, 3, 512), "layer", *_ADA, rotate=256)),
    Case("ada-rotated-64-ragged", _make((2, 5, 192), "layer", "scale", "shift", rotate=64)),
    Case("ada-views", _make((2, 3, 48), "layer", *_ADA, views=True)),
    Case("ada-one-for-all-images", _make((3, 5, 128), "layer", *_ADA, images=1)),
    Case("ada-by-frame", _make((2, 6, 96), "layer", *_ADA, parts=(3, 2))),
    Case("rms-by-frame-and-what-is-left", _make((2, 7, 64), "rms", *_SANDWICH, images=1, parts=(2, 3))),
    Case("rms-by-token", _make((2, 5, 64), "rms", "scale", "shift", parts=(5, 1))),
    Case("ada-rows-of-several-images-in-a-program", _make((70, 1, 24), "layer", *_ADA)),
    Case("ada-c3072", _make((1, 3, 3072), "layer", *_ADA)),
    Case("rms", _make((5, 100), "rms", "weight")),
    Case("rms-no-weight-rotated-16", _make((3, 80), "rms", rotate=16)),
    Case("rms-scale", _make((2, 5, 96), "rms", "weight", "scale")),
    Case("rms-sum", _make((2, 5, 96), "rms", "weight", "residual")),
    Case("rms-sandwich", _make((2, 5, 160), "rms", *_SANDWICH)),
    Case("rms-weight-less-one", _make((2, 5, 96), "rms", "weight", "scale", "residual", wide=True, offset=1.0)),
    Case("rms-shift", _make((2, 3, 64), "rms", "scale", "shift")),
    Case("rms-sandwich-no-gate", _make((6, 96), "rms", "weight", "residual", "x_weight")),
    Case("ada-e4m3", _make((2, 5, 72), "layer", *_ADA, number=E4M3)),
    Case("layer-e5m2", _make((2, 5, 64), "layer", number=E5M2)),
    Case("layer-by-range", _make((2, 5, 96), "layer", "weight", "bias", by_row=True)),
    Case("ada-e4m3-by-row", _make((2, 5, 72), "layer", *_ADA, number=E4M3, by_row=True), noise=2 * FLIP),
    Case("rms-sandwich-e4m3", _make((2, 5, 64), "rms", *_SANDWICH, number=E4M3)),
]
GPU_CASES = [
    Case("flux-1x4608x3072", _make((1, 4608, 3072), "layer", *_ADA)),
    Case("flux-1x4608x3072-rotated", _make((1, 4608, 3072), "layer", *_ADA, rotate=256)),
    Case("flux-1x4608x3072-no-residual", _make((1, 4608, 3072), "layer", "scale", "shift")),
    Case("flux-1x4608x3072-e4m3", _make((1, 4608, 3072), "layer", *_ADA, number=E4M3)),
    Case("qwen-2x6889x3072", _make((2, 6889, 3072), "layer", *_ADA)),
    Case("qwen-edit-1x8192x3072", _make((1, 8192, 3072), "layer", *_ADA, parts=(2, 4096))),
    Case("z-image-1x4320x3840", _make((1, 4320, 3840), "rms", *_SANDWICH)),
    Case("z-image-1x4320x3840-rotated", _make((1, 4320, 3840), "rms", *_SANDWICH, rotate=256)),
    Case("z-image-1x4320x3840-e4m3", _make((1, 4320, 3840), "rms", *_SANDWICH, number=E4M3)),
]
