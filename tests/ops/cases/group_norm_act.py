"""Cases of ``group_norm_act``."""

from __future__ import annotations

from typing import Any

import torch

from tests.ops.case import Case, Data, Made, Make
from tests.ops.shapes import GROUP_NORM


def _make(
    shape: tuple[int, int, int, int],
    groups: int,
    act: str = "silu",
    add_rows: int = 0,
    affine: torch.dtype | bool = True,
    mean: float = 0.5,
    std: float = 1.5,
    channels_last: bool = True,
    eps: float = 1e-5,
) -> Make:
    def make(dtype: torch.dtype, device: torch.device) -> Made:
        data = Data(dtype, device)
        channels = shape[1]
        x = data.normal(*shape, mean=mean, std=std, channels_last=channels_last)
        weight = bias = None
        if affine is not False:
            affine_dtype = affine if isinstance(affine, torch.dtype) else dtype
            weight = data.normal(channels, mean=1.0, std=0.3, dtype=affine_dtype)
            bias = data.normal(channels, std=0.3, dtype=affine_dtype)
        kwargs: dict[str, Any] = {"act": act}
        if add_rows:
            kwargs["channel_add"] = data.normal(add_rows, channels)
        return (x, groups, weight, bias, eps), kwargs

    return make


def _strided_add(dtype: torch.dtype, device: torch.device) -> Made:
    """channel_add as the model has it: a slice of one projection of all timestep embeddings."""
    args, kwargs = _make((2, 64, 6, 5), 32)(dtype, device)
    return args, {**kwargs, "channel_add": Data(dtype, device, seed=1).normal(2, 192)[:, 64:128]}


def _sliced_image(dtype: torch.dtype, device: torch.device) -> Made:
    """x neither contiguous nor channels_last."""
    args, kwargs = _make((2, 64, 6, 10), 8)(dtype, device)
    return (args[0][..., 2:9], *args[1:]), kwargs


def _tail(channels: int, like: Make) -> Any:
    """The last ``channels`` of the image as a tensor of their own."""

    def make(dtype: torch.dtype, device: torch.device) -> Made:
        (image, *args), kwargs = like(dtype, device)
        x, tail = image.split([image.shape[1] - channels, channels], dim=1)
        memory_format = (
            torch.channels_last if image.is_contiguous(memory_format=torch.channels_last) else torch.contiguous_format
        )
        return (x.contiguous(memory_format=memory_format), *args), {
            **kwargs,
            "tail": tail.contiguous(memory_format=memory_format),
        }

    return make


CASES = [
    # Groups of 10, 20, 30, 40, 60 and 80 channels, as in SD1.5 and SDXL, with fewer groups.
    Case("c10", _make((2, 80, 9, 8), 8)),
    Case("c10-largest-in-one-kernel", _make((1, 20, 32, 32), 2, act="none")),
    Case("c10-two-kernels", _make((1, 40, 33, 32), 4, add_rows=1)),
    Case("c20", _make((1, 160, 5, 7), 8, act="none")),
    Case("c30", _make((1, 120, 5, 7), 4, add_rows=1)),
    Case("c40", _make((2, 160, 3, 3), 4, add_rows=2)),
    Case("c60", _make((2, 240, 4, 4), 4)),
    Case("c80", _make((1, 160, 8, 9), 2)),
    # Odd sizes, few and many groups.
    Case("c3-odd", _make((3, 21, 7, 5), 7)),
    Case("one-channel-groups", _make((2, 19, 6, 6), 19)),
    Case("one-group", _make((2, 72, 5, 5), 1)),
    Case("one-group-two-kernels", _make((1, 700, 9, 8), 1)),
    Case("one-pixel", _make((2, 64, 1, 1), 8)),
    Case("one-row", _make((1, 32, 1, 900), 4)),
    Case("single-channel", _make((2, 1, 20, 20), 1)),
    # Two tensors, where a group and a load of 8 channels may be of both.
    Case("tail", _tail(64, _make((2, 160, 9, 8), 8, add_rows=2))),
    Case("tail-odd", _tail(5, _make((2, 21, 7, 5), 7))),
    Case("tail-two-kernels", _tail(16, _make((1, 40, 33, 32), 4, add_rows=1))),
    Case("tail-in-groups", _tail(60, _make((1, 120, 5, 7), 4, act="none"))),
    Case("tail-contiguous", _tail(24, _make((2, 64, 6, 5), 8, channels_last=False))),
    # Parameters.
    Case("no-affine", _make((2, 64, 6, 6), 16, affine=False)),
    Case("float32-affine", _make((2, 64, 6, 6), 16, affine=torch.float32, add_rows=2)),
    Case("strided-add", _strided_add),
    Case("large-eps", _make((1, 64, 8, 8), 8, eps=0.5)),
    # A mean of many standard deviations, which a sum of squares in float32 does not survive.
    Case("far-from-zero", _make((1, 64, 8, 8), 8, act="none", mean=60.0, std=0.5)),
    # Layouts.
    Case("contiguous", _make((2, 64, 6, 5), 8, channels_last=False)),
    Case("sliced", _sliced_image),
    Case("empty-batch", _make((0, 64, 8, 8), 8)),
    Case("empty-image", _make((2, 64, 0, 8), 8)),
]

# Images that two kernels share: many programs, which the interpreter takes seconds for.
# tests/ops/test_group_norm_partials.py has them smaller.
LARGER = [
    Case("c4-two-kernels", _make((1, 128, 48, 33), 32)),
    Case("c7-odd-two-kernels", _make((1, 21, 37, 29), 3, add_rows=1)),
    Case("c16-two-kernels", _make((1, 128, 33, 32), 8)),
    Case("c30-two-kernels", _make((1, 120, 40, 33), 4)),
    Case("c80-two-kernels", _make((1, 240, 33, 32), 3)),
    Case("one-channel-groups-two-kernels", _make((1, 70, 33, 32), 70)),
    Case("no-affine-two-kernels", _make((1, 40, 33, 33), 4, affine=False, act="none")),
    Case("float32-affine-two-kernels", _make((2, 160, 33, 31), 4, affine=torch.float32, add_rows=1)),
    Case("far-from-zero-two-kernels", _make((1, 80, 40, 33), 8, act="none", mean=60.0, std=0.5)),
    Case("contiguous-two-kernels", _make((1, 40, 33, 32), 4, channels_last=False)),
]

GPU_CASES = [
    *LARGER,
    *(
        Case(f"{'x'.join(map(str, shape))}-tail{tail}", _tail(tail, _make(shape, 32)))
        for shape, tail in (((2, 960, 64, 64), 320), ((2, 2560, 8, 8), 1280), ((2, 960, 128, 128), 320))
    ),
    *(
        Case(
            f"{model}-{'x'.join(map(str, s.size))}-{s.act}{'-add' if s.add else ''}",
            _make(s.size, 32, act=s.act, add_rows=s.size[0] if s.add else 0),
        )
        for model, shapes in GROUP_NORM.items()
        for s in shapes
    ),
    Case("past-2-31-elements", _make((3, 128, 2368, 2368), 32), slow=True),
]
