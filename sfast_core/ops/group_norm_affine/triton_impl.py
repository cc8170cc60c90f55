"""The statistics kernel of GroupNorm, and one that makes a scale and a shift of them."""

from __future__ import annotations

import torch
import triton

from ...target import Target
from ..group_moments.triton_impl import why_not as why_no_moments
from ..group_norm_act.triton_image import Image
from ..group_norm_act.triton_two_impl import MAX_CHUNKS, statistics
from ..packs import contiguous
from ..spec import Arguments
from ..triton_launch import launcher
from .triton_kernels import affine_kernel


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why the kernels can't compute this, or None."""
    if reason := why_no_moments(target, call):
        return reason
    for name in ("weight", "bias"):
        vector = getattr(call, name)
        if vector is not None and (tuple(vector.shape) != (call.x.shape[1],) or not vector.is_floating_point()):
            return f"{name} is {list(vector.shape)} {vector.dtype}, must be {call.x.shape[1]} floats"
    return None


def launch(x, num_groups, weight, bias, eps) -> tuple[torch.Tensor, torch.Tensor]:
    """As :func:`.reference.group_norm_affine`, with float32 arithmetic throughout."""
    image = Image.of(x, None)
    batch, channels = x.shape[:2]
    factor, shift = torch.empty((2, batch, channels), dtype=torch.float32, device=x.device)
    partials = statistics(image, num_groups, None)
    launcher(affine_kernel, (num_groups, batch))(
        partials.mean,
        partials.m2,
        *contiguous(weight, bias),
        factor,
        shift,
        image.rows,
        num_groups,
        channels // num_groups,
        partials.chunk_rows,
        partials.mean.shape[2],
        eps,
        CHUNKS=MAX_CHUNKS,
        BLOCK_D=triton.next_power_of_2(channels // num_groups),
        num_warps=1,
    )
    return factor, shift
