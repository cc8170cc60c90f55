"""What the convolution to few channels takes, that it is asked of the library last, and what the library refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sfast_core.ops.conv2d_act import OP
from sfast_core.target import Target
from tests.targets import A100, H100

OLD = Target(torch.device("cuda", 0), "T4", (7, 5), sm_count=40, shared_memory_bytes=65536, triton=True)


def image(channels: int = 320, images: int = 2, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.empty(images, channels, 24, 20, dtype=dtype, device="meta")


def taps(outputs: int = 4, channels: int = 320, size: int = 3) -> torch.Tensor:
    return torch.empty(outputs, channels, size, size, dtype=torch.float16, device="meta")


def reason(target: Target, x: torch.Tensor, weight: torch.Tensor, **options: Any) -> str | None:
    (impl,) = [impl for impl in OP.impls if impl.name == "cuda_few"]
    return impl.why_not(target, x, weight, None, **{"padding": 1} | options)


@pytest.mark.parametrize("target", [A100, H100], ids=lambda target: target.name)
@pytest.mark.parametrize("outputs", [1, 3, 4, 8])
def test_it_takes_few_channels(asked: list[str], target: Target, outputs: int) -> None:
    assert reason(target, image(), taps(outputs)) is None
    assert asked == ["sfast_conv2d_few_status"]


@pytest.mark.parametrize(
    ("target", "x", "weight", "options", "expected"),
    [
        (OLD, image(), taps(), {}, "needs compute capability 8.0, this is 7.5"),
        (H100, image(dtype=torch.float32), taps(), {}, "x is float32, must be float16 or bfloat16"),
        (H100, image(), taps(9), {}, "320 channels must be a multiple of 64, 9 at most 8"),
        (H100, image(24), taps(channels=24), {}, "24 channels must be a multiple of 64, 4 at most 8"),
        (H100, image(), taps(size=1), {}, "a kernel of [1, 1], strides of (1, 1) and paddings of (1, 1)"),
        (H100, image(), taps(), {"stride": 2}, "a kernel of [3, 3], strides of (2, 2)"),
        (H100, image(), taps(), {"padding": (1, 0)}, "a kernel of [3, 3], strides of (1, 1) and paddings of (1, 0)"),
        (H100, image(), taps(), {"dilation": 2}, "dilated and grouped convolutions"),
        (H100, image(), taps(), {"groups": 2}, "dilated and grouped convolutions"),
        (H100, image(), taps(), {"act": "silu"}, "only a bias is added"),
        (H100, image(), taps(), {"residual": image(4)}, "only a bias is added"),
        (
            H100,
            image(),
            taps(),
            {"channel_add": torch.empty(2, 4, device="meta", dtype=torch.float16)},
            "only a bias is added",
        ),
        (H100, image(images=65536), taps(), {}, "65536 images are more than 65535"),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_it_says_what_it_does_not_take(
    asked: list[str], target: Target, x: torch.Tensor, weight: torch.Tensor, options: dict[str, Any], expected: str
) -> None:
    assert (reason(target, x, weight, **options) or "").startswith(f"cuda_few: {expected}")
    assert not asked
