"""A doubled image's convolution by the CUDA extension: what it takes, and each way of cutting it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from sfast_core.native import load
from sfast_core.ops.conv2d_act.tiling import Tiling
from sfast_core.ops.upsample_conv2d import OP, cuda_impl
from sfast_core.target import Target
from tests.ops.case import Data
from tests.targets import B200, H100


def image(channels: int = 64, dtype: torch.dtype = torch.float16, height: int = 32) -> torch.Tensor:
    return torch.empty(2, channels, height, 24, dtype=dtype, device="meta")


def taps(outputs: int = 320, channels: int = 64, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.empty(outputs, channels, 3, 3, dtype=dtype, device="meta")


def reason(target: Target, x: torch.Tensor, weight: torch.Tensor) -> str | None:
    (impl,) = [impl for impl in OP.impls if impl.name == "cuda"]
    return impl.why_not(target, x, weight, None)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_it_takes_what_models_have(asked: list[str], dtype: torch.dtype) -> None:
    assert reason(H100, image(dtype=dtype), taps(dtype=dtype)) is None
    assert asked == ["sfast_conv2d_status"]


@pytest.mark.parametrize(
    ("target", "x", "weight", "expected"),
    [
        (B200, image(), taps(), "is for compute capability 9.0, this is 10.0"),
        (H100, image(dtype=torch.float32), taps(dtype=torch.float32), "x is float32, must be float16 or bfloat16"),
        (H100, image(60), taps(channels=60), "60 channels must be a multiple of 64, 320 of 8"),
        (H100, image(), taps(4), "64 channels must be a multiple of 64, 4 of 8"),
        (H100, image(height=0), taps(), "x of [2, 64, 0, 24] or weight of [320, 64, 3, 3] is empty"),
        (
            H100,
            image(1280, height=1),
            taps(1280, 1280),
            "the sums of taps are 26214400 values, the result 245760: more memory than it is worth",
        ),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_it_says_what_it_does_not_take(
    asked: list[str], target: Target, x: torch.Tensor, weight: torch.Tensor, expected: str
) -> None:
    assert (reason(target, x, weight) or "").startswith(f"cuda: {expected}")
    assert not asked


WAYS = [
    Tiling(*tile, 0, rows, columns, 1)
    for tile in ((128, 160), (256, 160), (256, 128))
    for rows in (1, 2)
    for columns in (1, 2)
]


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("images", "height", "width", "inputs", "outputs"),
    [
        pytest.param(2, 32, 32, 192, 640, id="rows-of-a-tile"),
        pytest.param(3, 26, 38, 192, 328, id="tiles-across-images"),
        pytest.param(5, 5, 3, 192, 24, id="images-within-a-tile"),
        pytest.param(1, 1, 1, 64, 8, id="one-pixel"),
        pytest.param(1, 128, 100, 64, 320, id="tiles-one-after-the-other"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tiling", WAYS, ids=lambda tiling: "-".join(map(str, tiling)))
def test_each_tiling_computes_the_same(
    tiling: Tiling, dtype: torch.dtype, images: int, height: int, width: int, inputs: int, outputs: int
) -> None:
    device = torch.device("cuda")
    if reason := load.why_not(device, "sfast_conv2d_status"):
        pytest.skip(reason)
    data = Data(dtype, device)
    x = data.normal(images, inputs, height, width, channels_last=True)
    weight = data.normal(outputs, inputs, 3, 3, std=(9 * inputs) ** -0.5, channels_last=True)
    bias = data.normal(outputs)
    expected = F.conv2d(
        F.interpolate(x.float(), scale_factor=2.0, mode="nearest"), weight.float(), bias.float(), padding=1
    )
    out = cuda_impl.launch_tiled(tiling, x, weight, bias)
    assert (out.float() - expected).norm() < (6e-4 if dtype == torch.float16 else 5e-3) * expected.norm()
    torch.testing.assert_close(out.float(), expected, rtol=0, atol=8e-3 if dtype == torch.float16 else 6e-2)
    for _ in range(3):
        assert torch.equal(out, cuda_impl.launch_tiled(tiling, x, weight, bias))
