"""The doubled image in four phases: pixels (2y + i, 2x + j) are one 2x2 convolution of the small image.

Three rows of the doubled image are two of the small one, one of them twice: for even rows y - 1, y, y and for odd ones y, y, y + 1. So
two of the weight's rows fall on the same pixels and can be summed beforehand, and two of its columns: 4 taps instead of 9, and no doubled
image. Row y of phase 0 reads rows y - 1 and y of the small image, of phase 1 rows y and y + 1.

The weights of the phases are computed at every call: whoever writes to the weight in place must reach them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..triton_launch import launcher
from .triton_kernels import interleave_kernel, phase_weights_kernel

PHASES = ((0, 0), (0, 1), (1, 0), (1, 1))  #: (i, j): of rows, of columns
BLOCK_ROWS = 16  # outputs of the weight, pixels of the image
BLOCK_CHANNELS = 64  # 128 bytes; with 4 warps each thread loads 16 bytes nine times (of the weight) or four times (of the image)


def phase_weights(weight: torch.Tensor) -> torch.Tensor:
    """The weights of the four phases, computed in float32 and rounded once.

    Args:
        weight: [O, C, 3, 3], not empty.

    Returns:
        [2, 2, O, C, 2, 2] in weight's dtype; ``[i, j]`` is the weight of phase (i, j), dense in channels_last.
    """
    weight = weight.contiguous(memory_format=torch.channels_last)
    outputs, channels = weight.shape[:2]
    phases = torch.empty((2, 2, outputs, 2, 2, channels), dtype=weight.dtype, device=weight.device)
    launcher(phase_weights_kernel, (-(-outputs // BLOCK_ROWS), -(-channels // BLOCK_CHANNELS)))(
        weight,
        phases,
        phases.stride(1),
        outputs,
        channels,
        BLOCK_OUTPUTS=BLOCK_ROWS,
        BLOCK_CHANNELS=BLOCK_CHANNELS,
        num_warps=4,
    )
    return phases.permute(0, 1, 2, 5, 3, 4)


def interleave(results: Sequence[torch.Tensor], bias: torch.Tensor | None, out: torch.Tensor) -> None:
    """``out[:, :, i::2, j::2] = result + bias`` for each phase, the sum in float32.

    Args:
        results: [B, O, H, W] each, in the order of ``PHASES``, all with the same strides: channels innermost, then dense pixels, rows and
            images as they lie. Parts of larger images will do.
        bias: [O] or None.
        out: [B, O, 2 * H, 2 * W], dense in channels_last and not empty.
    """
    batch, channels, height, width = results[0].shape
    pixels = batch * height * width
    launcher(interleave_kernel, (-(-pixels // BLOCK_ROWS), -(-channels // BLOCK_CHANNELS)))(
        *results,
        out if bias is None else bias.contiguous(),
        out,
        pixels,
        height,
        width,
        results[0].stride(0),
        results[0].stride(2),
        channels,
        HAS_BIAS=bias is not None,
        BLOCK_PIXELS=BLOCK_ROWS,
        BLOCK_CHANNELS=BLOCK_CHANNELS,
        num_warps=4,
    )


def empty_image(x: torch.Tensor, channels: int, factor: int) -> torch.Tensor:
    """[B, channels, factor * H, factor * W], channels_last, for an x of [B, C, H, W]."""
    size = (x.shape[0], channels, factor * x.shape[2], factor * x.shape[3])
    return torch.empty(size, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
