"""What the CUDA kernels of a convolution take, and that each way of cutting it gives the same result, and the same bits
at every run.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from sfast_core.native import load
from sfast_core.ops.conv2d_act import OP, cuda_impl
from sfast_core.ops.conv2d_act.tiling import Tiling
from sfast_core.target import Target
from tests.ops.case import Data
from tests.targets import B200, H100


def image(channels: int = 64, dtype: torch.dtype = torch.float16, height: int = 32, width: int = 24) -> torch.Tensor:
    return torch.empty(2, channels, height, width, dtype=dtype, device="meta")


def taps(channels: int = 320, inputs: int = 64, size: int = 3, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.empty(channels, inputs, size, size, dtype=dtype, device="meta")


def reason(target: Target, x: torch.Tensor, weight: torch.Tensor, **options: Any) -> str | None:
    (impl,) = [impl for impl in OP.impls if impl.name == "cuda"]
    return impl.why_not(target, x, weight, None, **options)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "options", [{"padding": 1}, {"stride": 2, "padding": 1}, {"act": "silu"}, {"padding": (0, 2)}], ids=str
)
def test_it_takes_what_models_have(asked: list[str], dtype: torch.dtype, options: dict[str, Any]) -> None:
    assert reason(H100, image(dtype=dtype), taps(dtype=dtype), **options) is None
    assert asked == ["sfast_conv2d_status"]


@pytest.mark.parametrize(
    ("target", "x", "weight", "options", "expected"),
    [
        (B200, image(), taps(), {}, "is for compute capability 9.0, this is 10.0"),
        (H100, image(dtype=torch.float32), taps(dtype=torch.float32), {}, "x is float32, must be float16 or bfloat16"),
        (H100, image(60), taps(inputs=60), {}, "60 channels must be a multiple of 64, 320 of 8"),
        (H100, image(), taps(4), {}, "64 channels must be a multiple of 64, 4 of 8"),
        (H100, image(), taps(size=17), {}, "a kernel of [17, 17], strides of (1, 1) and paddings of (0, 0) are too much"),
        (H100, image(), taps(), {"dilation": 2}, "dilated and grouped convolutions"),
        (H100, image(), taps(), {"padding": "same"}, "dilated and grouped convolutions"),
        (H100, image(height=2), taps(), {}, "the result has 2 x 0 x 22 pixels"),
        (H100, image(), taps(), {"residual": torch.empty(2, 320, 1, 1, dtype=torch.float16, device="meta")}, "residual of [2, 320, 1, 1] is broadcast"),
        (H100, image(), taps(), {"channel_add": torch.empty(3, 320, dtype=torch.float16, device="meta")}, "channel_add is [3, 320], must be [1 or 2, 320]"),
        (H100, image(), taps(), {"act": "gelu"}, "act 'gelu' is not supported"),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)  # fmt: skip
def test_it_says_what_it_does_not_take(
    asked: list[str], target: Target, x: torch.Tensor, weight: torch.Tensor, options: dict[str, Any], expected: str
) -> None:
    assert (reason(target, x, weight, **options) or "").startswith(f"cuda: {expected}")
    assert not asked


WAYS = [
    *(
        Tiling(128, 160, 0, rows, columns, splits)
        for rows in (1, 2)
        for columns in (1, 2)
        for splits in (1, 2, 3, 8)
        if rows * columns * splits <= 8
    ),
    *(
        Tiling(128, 160, 1, rows, columns, splits)
        for rows in (1, 2)
        for columns in (1, 2)
        for splits in (1, 2, 3)
        if rows * columns * splits <= 8
    ),
    *(Tiling(256, 160, 0, rows, columns, 1) for rows in (1, 2) for columns in (1, 2)),
    *(Tiling(256, 128, 0, rows, columns, 1) for rows in (1, 2) for columns in (1, 2)),
]


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("images", "height", "width", "inputs", "channels"),
    [
        pytest.param(2, 32, 32, 192, 640, id="rows-of-a-tile"),
        pytest.param(3, 26, 38, 192, 328, id="tiles-across-images"),
        pytest.param(5, 5, 3, 192, 24, id="images-within-a-tile"),
        pytest.param(1, 1, 1, 192, 8, id="one-pixel"),
        pytest.param(2, 96, 104, 192, 320, id="many-tiles"),
        pytest.param(1, 128, 128, 192, 640, id="tiles-one-after-the-other"),
        pytest.param(1, 40, 90, 192, 320, id="few-stages-beside-the-windows"),
    ],
)
@pytest.mark.parametrize("tiling", WAYS, ids=lambda tiling: "-".join(map(str, tiling)))
def test_each_tiling_computes_the_same(
    tiling: Tiling, images: int, height: int, width: int, inputs: int, channels: int
) -> None:
    device = torch.device("cuda")
    if reason := load.why_not(device, "sfast_conv2d_status"):
        pytest.skip(reason)
    if (
        load.library().sfast_conv2d_clusters(
            images, height, width, tiling.rows, tiling.columns, tiling.window, tiling.blocks
        )
        == 0
    ):
        pytest.skip("the GPU has no room for such a cut")
    data = Data(torch.float16, device)
    x = data.normal(images, inputs, height, width, channels_last=True)
    weight = data.normal(channels, inputs, 3, 3, std=(9 * inputs) ** -0.5, channels_last=True)
    bias, add = data.normal(channels), data.normal(images, channels)
    residual = data.normal(images, channels, height, width, channels_last=True)
    begun, tail = (data.normal(images, size, height, width, channels_last=True) for size in (64, 256))
    short = data.normal(channels, 320, 1, 1, std=320**-0.5)
    taps = F.conv2d(x.float(), weight.float(), bias.float(), padding=1)
    full = F.silu(taps + add.float()[:, :, None, None] + residual.float())
    joined = F.conv2d(torch.cat([begun, tail], 1).float(), short.float())
    for expected, extras in [
        (taps, (None, "none", None)),
        (full, (residual, "silu", add)),
        (taps + joined, (None, "none", None, cuda_impl.Shortcut(begun, short, tail))),
        (
            taps + F.conv2d(begun.float(), short[:, :64].float()),
            (None, "none", None, cuda_impl.Shortcut(begun, short[:, :64], None)),
        ),
    ]:
        out = cuda_impl.launch_tiled(tiling, x, weight, bias, 1, 1, *extras)
        torch.testing.assert_close(out.float(), expected, rtol=2e-3, atol=4e-3)
        for _ in range(3):
            assert torch.equal(out, cuda_impl.launch_tiled(tiling, x, weight, bias, 1, 1, *extras))
