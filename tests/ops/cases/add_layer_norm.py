"""Cases of ``add_layer_norm``."""

from __future__ import annotations

import torch

from tests.ops.case import Case, Data, Made, Make
from tests.ops.shapes import LAYER_NORM


def _make(
    shape: tuple[int, ...],
    residual: bool = True,
    affine: torch.dtype | bool = True,
    mean: float = 0.2,
    std: float = 1.0,
    x_bias: bool = False,
    sum_bias: bool = False,
) -> Make:
    def make(dtype: torch.dtype, device: torch.device) -> Made:
        data = Data(dtype, device)
        x = data.normal(*shape, mean=mean, std=std)
        added = data.normal(*shape, mean=-0.1, std=0.7) if residual else None
        weight = bias = None
        if affine is not False:
            affine_dtype = affine if isinstance(affine, torch.dtype) else dtype
            weight = data.normal(shape[-1], mean=1.0, std=0.3, dtype=affine_dtype)
            bias = data.normal(shape[-1], std=0.3, dtype=affine_dtype)
        biases = [data.normal(shape[-1], std=0.3) if wanted else None for wanted in (x_bias, sum_bias)]
        return (x, added, weight, bias, 1e-5, *(biases if sum_bias else biases[:x_bias])), {}

    return make


def _views(residual: bool) -> Make:
    """Tokens as a view of a contiguous image (the transpose that channels_last avoids) and rows with gaps between
    them.
    """

    def make(dtype: torch.dtype, device: torch.device) -> Made:
        data = Data(dtype, device)
        x = data.normal(2, 48, 3, 5).flatten(2).transpose(1, 2)
        added = data.normal(2, 15, 80)[..., 16:64] if residual else None
        return (x, added, data.normal(48, mean=1.0), data.normal(48), 1e-6), {}

    return make


CASES = [
    Case("c64", _make((2, 9, 64))),
    Case("c320", _make((2, 7, 320))),
    Case("c640-no-residual", _make((3, 5, 640), residual=False)),
    Case("c1280", _make((1, 6, 1280))),
    Case("c8192", _make((2, 8192))),
    Case("c768", _make((3, 11, 768))),
    Case("c2048", _make((5, 2048), x_bias=True)),
    Case("c3072-no-residual", _make((3, 3072), residual=False)),
    Case("c24", _make((70, 24))),
    Case("odd", _make((5, 3, 33))),
    Case("odd-long", _make((3, 1531))),
    Case("one-channel", _make((4, 1))),
    Case("one-row", _make((96,))),
    Case("no-affine", _make((2, 5, 128), affine=False)),
    Case("float32-affine", _make((2, 5, 128), affine=torch.float32)),
    Case("far-from-zero", _make((4, 256), mean=60.0, std=0.5)),
    Case("x-bias", _make((2, 7, 320), x_bias=True)),
    Case("x-bias-odd-no-affine", _make((5, 3, 33), affine=False, x_bias=True)),
    Case("x-bias-empty", _make((0, 7, 64), x_bias=True)),
    Case("sum-bias", _make((2, 7, 320), sum_bias=True)),
    Case("both-biases", _make((3, 11, 768), x_bias=True, sum_bias=True)),
    Case("both-biases-odd-no-affine", _make((5, 3, 33), affine=False, x_bias=True, sum_bias=True)),
    Case("views", _views(residual=True)),
    Case("view-no-residual", _views(residual=False)),
    Case("empty", _make((0, 7, 64))),
    Case("empty-no-residual", _make((2, 0, 64), residual=False)),
]

GPU_CASES = [
    *(
        Case(
            f"{model}-{'x'.join(map(str, s.size))}{'' if s.residual else '-no-residual'}",
            _make(s.size, residual=s.residual),
        )
        for model, shapes in LAYER_NORM.items()
        for s in shapes
    ),
    Case("sdxl-2x1024x1280-x-bias", _make((2, 1024, 1280), x_bias=True)),
    Case("sdxl-2x1024x1280-both-biases", _make((2, 1024, 1280), x_bias=True, sum_bias=True)),
    Case("past-2-31-elements", _make((2**19 + 3, 4100)), slow=True),
]
