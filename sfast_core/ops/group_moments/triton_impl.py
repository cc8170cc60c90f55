"""The statistics of GroupNorm's two kernels, its chunks joined."""

from __future__ import annotations

import torch

from ...target import Target
from ..group_norm_act import triton_image
from ..group_norm_act.triton_two_impl import statistics
from ..spec import Arguments


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why the kernel can't compute this, or None."""
    if call.x.numel() == 0:
        return "the image is empty"
    if call.num_groups <= 0 or call.x.shape[1] % call.num_groups:
        return f"{call.x.shape[1]} channels are not a multiple of {call.num_groups} groups"
    if call.x.shape[1] // call.num_groups > triton_image.MAX_GROUP_CHANNELS:
        return f"groups of {call.x.shape[1] // call.num_groups} channels are larger than the kernel's"
    if call.x.shape[0] > 65535 or call.x.shape[2] * call.x.shape[3] >= 2**31 - 2**16:
        return f"{call.x.shape[0]} images of {call.x.shape[2]} x {call.x.shape[3]} are too large"
    return None


def launch(x, num_groups) -> torch.Tensor:
    """As :func:`.reference.group_moments`, with float32 arithmetic throughout."""
    image = triton_image.Image.of(x, None)
    means, m2, chunk_rows = statistics(image, num_groups, None)
    last = image.rows - chunk_rows * (means.shape[2] - 1)  # the other chunks are as long as one another
    mean = (means[..., :-1].sum(-1) * chunk_rows + means[..., -1] * last) / image.rows
    apart = (means - mean[..., None]).square()
    between = (apart[..., :-1].sum(-1) * chunk_rows + apart[..., -1] * last) / image.rows
    within = m2.sum(-1) / (image.rows * (image.channels // num_groups))
    return torch.stack([mean, within + between], 1)
