"""GroupNorm over channels_last images, with an activation behind it and a per-channel addend before it."""

from __future__ import annotations

import torch

from ..needs import FLOATS, Needs
from ..spec import Arguments, Impl, Op
from .reference import group_norm_act

__all__ = ["OP", "group_norm_act"]


def _family(call: Arguments) -> tuple[str, int]:
    x, num_groups, *rest = vars(call).values()
    extras = [isinstance(item, torch.Tensor) or item for item in rest]
    return f"{x.dtype} {x.shape[1]} {num_groups} {extras}", x.numel()


def _above_16x16(call: Arguments) -> bool:
    return call.x.shape[2:].numel() > 16 * 16


_NEEDS = Needs(dtypes=FLOATS, typed="x weight bias channel_add tail", dims=4)

OP = Op(
    name="group_norm_act",
    reference=group_norm_act,
    impls=(
        # Above 16 x 16 slower than in clusters at 35 of 40 calls of SD1.5 and SDXL, by up to 2.2 times, and each kind
        # takes a second to compile.
        Impl("triton", superseded_by=("cuda_cluster",), superseded_if=_above_16x16, needs=_NEEDS.of(triton=True)),
        Impl("cuda", needs=_NEEDS.of(capability=(7, 5), extension="sfast_device_status")),
        Impl("cuda_cluster", needs=_NEEDS.of(capability=(9, 0), extension="sfast_cluster_status")),
        # In two kernels the extension is at least as fast (H100, us: 2x320x64x64 19.4 and 21.7, 2x320x128x128 34.8 and
        # 41.3), and Triton's take one to two seconds each to compile.
        Impl("triton_two", superseded_by=("triton", "cuda", "cuda_cluster"), needs=_NEEDS.of(triton=True)),
    ),
    measured=True,
    family=_family,
    reference_competes=False,  # 2.5 to 16 times slower at all 426 calls of SD1.5 and SDXL at 19 sizes (H100)
    channels_last=True,
)
