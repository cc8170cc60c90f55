"""What the kernels that end a convolution are given: whatever comes after its products."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ..packs import INNERMOST, contiguous


class Epilogue(NamedTuple):
    """Arguments of the kernels in :mod:`.triton_kernels`: those from ``bias`` to ``channels``, and the constants."""

    arguments: tuple[Any, ...]
    constants: dict[str, Any]


def epilogue(
    out: torch.Tensor,
    bias: torch.Tensor | None,
    channel_add: torch.Tensor | None,
    residual: torch.Tensor | None,
    act: str,
) -> Epilogue:
    """For ``act(products + bias + channel_add + residual)`` into ``out`` [B, O, H, W] or [B, O, T, H, W], its channels
    innermost. Operands that lie otherwise are copied.
    """
    batch, channels = out.shape[:2]
    tensors = (
        *contiguous(bias, channel_add),
        None if residual is None else residual.expand_as(out).contiguous(memory_format=INNERMOST[out.dim()]),
    )
    image_pixels = out.shape[2:].numel()
    channel_batch = channels if channel_add is not None and channel_add.shape[0] > 1 else 0
    there = dict(
        zip(("HAS_BIAS", "HAS_CHANNEL_ADD", "HAS_RESIDUAL"), (tensor is not None for tensor in tensors), strict=True)
    )
    given = tuple(out if tensor is None else tensor for tensor in tensors)  # what isn't there isn't read
    return Epilogue((*given, batch * image_pixels, image_pixels, channel_batch, channels), {**there, "ACT": act})
