"""Tensors as kernels want them: without gaps, and beginning on 16 bytes where so many are read at a time."""

from __future__ import annotations

import torch

PACK_BYTES = 16
#: The layouts of images and videos with their channels innermost, by the number of dimensions.
INNERMOST = {4: torch.channels_last, 5: torch.channels_last_3d}


def dense(tensor: torch.Tensor, memory_format: torch.memory_format = torch.contiguous_format) -> torch.Tensor:
    """``tensor`` without gaps in this order and beginning on 16 bytes, copied only where it is not."""
    tensor = tensor.contiguous(memory_format=memory_format)
    return tensor if tensor.data_ptr() % PACK_BYTES == 0 else tensor.clone(memory_format=memory_format)


def contiguous(*tensors: torch.Tensor | None) -> list[torch.Tensor | None]:
    """Each of ``tensors`` without gaps, copied only where it has some; None stays None."""
    return [None if tensor is None else tensor.contiguous() for tensor in tensors]
