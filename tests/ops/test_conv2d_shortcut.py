"""What the CUDA extension takes of a convolution with its shortcut, and what both biases become."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sfast_core.ops.conv2d_act import cuda_impl as convolution
from sfast_core.ops.conv2d_act.tiling import Tiling
from sfast_core.ops.conv2d_shortcut import OP, cuda_impl
from sfast_core.target import Target
from tests.ops.conftest import Library
from tests.targets import B200, H100


def half(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


GOOD: dict[str, Any] = {
    "x": half(2, 64, 32, 24),
    "weight": half(320, 64, 3, 3),
    "bias": half(320),
    "padding": 1,
    "shortcut": half(2, 128, 32, 24),
    "shortcut_weight": half(320, 192, 1, 1),
    "shortcut_bias": half(320),
    "tail": half(2, 64, 32, 24),
}


def reason(target: Target, **changed: Any) -> str | None:
    (impl,) = OP.impls
    return impl.why_not(target, *(GOOD | changed).values())


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"tail": None, "shortcut_weight": half(320, 128, 1, 1)},
        {"bias": None},
        {"shortcut_bias": None},
        {"padding": (1, 1)},
    ],
    ids=["two parts", "one part", "no bias", "no bias of the shortcut", "two paddings"],
)
def test_it_takes_what_models_have(asked: list[str], changed: dict[str, Any]) -> None:
    assert reason(H100, **changed) is None
    assert asked == ["sfast_conv2d_status"]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"shortcut": half(2, 128, 32, 23)}, "the shortcut is [2, 128, 32, 23], must be 2 images of 32 x 24"),
        ({"tail": half(1, 64, 32, 24)}, "the shortcut is [1, 64, 32, 24], must be 2 images of 32 x 24"),
        ({"shortcut": half(128, 32, 24)}, "the shortcut is [128, 32, 24], must be 2 images of 32 x 24"),
        ({"padding": 0}, "the shortcut is [2, 128, 32, 24], must be 2 images of 30 x 22"),
        (
            {"shortcut": half(2, 160, 32, 24), "tail": half(2, 32, 32, 24)},
            "160 channels of the shortcut must be a multiple of 64",
        ),
        ({"tail": half(2, 0, 32, 24)}, "0 channels of the shortcut must be a multiple of 64"),
        (
            {"shortcut_weight": half(320, 128, 1, 1)},
            "the shortcut's weight is [320, 128, 1, 1], must be [320, 192, 1, 1]",
        ),
        (
            {"shortcut_weight": half(320, 192, 3, 3)},
            "the shortcut's weight is [320, 192, 3, 3], must be [320, 192, 1, 1]",
        ),
        ({"tail": half(2, 64, 32, 24, dtype=torch.bfloat16)}, "tail is bfloat16, x is float16"),
        ({"padding": "same"}, "dilated and grouped convolutions, and paddings by name"),
        (
            {"x": half(2, 64, 8, 8), "shortcut": half(2, 128, 8, 8), "tail": half(2, 64, 8, 8)},
            "2 images of 8 x 8 are so few pixels",
        ),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_it_says_what_it_does_not_take(asked: list[str], changed: dict[str, Any], expected: str) -> None:
    assert (reason(H100, **changed) or "").startswith(f"cuda: {expected}")


def test_other_gpus_have_no_such_kernel(asked: list[str]) -> None:
    assert reason(B200) == "cuda: is for compute capability 9.0, this is 10.0" and not asked


def test_the_shortcuts_bias_is_a_sum_for_all_images(monkeypatch: pytest.MonkeyPatch, library: Library) -> None:
    monkeypatch.setattr(convolution, "best", lambda *arguments: Tiling(128, 160, 0, 1, 1, 1))
    tensors = {
        name: torch.zeros(value.shape, dtype=torch.float16)
        for name, value in GOOD.items()
        if isinstance(value, torch.Tensor)
    }
    cuda_impl.launch(*(GOOD | tensors).values())
    given = library.calls["sfast_conv2d"]
    assert (given["bias"], given["channel_add"]) == (tensors["bias"].data_ptr(), tensors["shortcut_bias"].data_ptr())
    assert given["channel_add_stride"] == 0
