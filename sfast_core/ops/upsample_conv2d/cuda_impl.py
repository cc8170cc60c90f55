"""Doubling and convolving by the CUDA extension, on Hopper: four phases, each a convolution of the small image.

As in :mod:`.triton_impl` 4/9 of the products are left. All phases are one kernel's, which adds the bias where its sums
begin; the kernels are in ``csrc/conv2d.cu``. The phases' weights are summed at every call: whoever writes to the weight
in place must reach them.
"""

from __future__ import annotations

import functools

import torch

from ...native import load
from ...target import Target
from ..conv2d_act.cuda_impl import MOST, best_tiling_on
from ..conv2d_act.reference import memory_format_of
from ..conv2d_act.tiling import DEPTH, Convolution, Tiling
from ..packs import dense
from ..spec import Arguments
from .constraints import why_not_shapes, why_not_weight

PHASES, TAPS = 4, 4  #: of the result, and of the weight of each


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why the kernels can't compute this, or None."""
    if reason := why_not_shapes(call.x, call.weight, call.bias) or why_not_weight(call.x, call.weight):
        return reason
    if call.x.numel() == 0 or call.weight.numel() == 0:
        return f"x of {list(call.x.shape)} or weight of {list(call.weight.shape)} is empty"
    if call.x.shape[1] % DEPTH != 0 or call.weight.shape[0] % 8 != 0:
        return f"{call.x.shape[1]} channels must be a multiple of {DEPTH}, {call.weight.shape[0]} of 8"
    if call.weight.numel() > MOST:
        return f"weight of {list(call.weight.shape)} is larger than 32-bit coordinates reach"
    return None


def launch(x, weight, bias) -> torch.Tensor:
    """As :func:`.reference.upsample_conv2d`; only sums of taps and the result are rounded to x's dtype."""
    return launch_tiled(_tiling(x.device, tuple(x.shape), weight.shape[0]), x, weight, bias)


def launch_tiled(tiling: Tiling, x, weight, bias) -> torch.Tensor:
    """As :func:`launch`, cut as told, without a window or a depth that blocks share."""
    batch, channels, height, width = x.shape
    outputs = weight.shape[0]
    out = torch.empty(
        (batch, outputs, 2 * height, 2 * width), dtype=x.dtype, device=x.device, memory_format=torch.channels_last
    )
    image, taps = (dense(tensor, torch.channels_last) for tensor in (x, weight))
    column_sums = None if bias is None else dense(bias)
    phase_weights = torch.empty((PHASES, outputs, TAPS, channels), dtype=x.dtype, device=x.device)
    load.launch(
        "sfast_upsample_conv2d",
        x.device,
        f"upsample_conv2d for x {tuple(x.shape)}, weight {tuple(weight.shape)} {x.dtype}",
        x=image,
        weight=taps,
        bias=column_sums,
        phase_weights=phase_weights,
        out=out,
        n=batch,
        height=height,
        width=width,
        c=channels,
        channels=outputs,
        dtype=load.DTYPES[x.dtype],
        rows=tiling.rows,
        columns=tiling.columns,
        sharing_rows=tiling.sharing_rows,
        sharing_columns=tiling.sharing_columns,
    )
    return out.contiguous(memory_format=memory_format_of(x))


@functools.cache
def _tiling(device: torch.device, x: tuple[int, ...], outputs: int) -> Tiling:
    """The best cut on ``device`` for an image of this shape."""
    batch, channels, height, width = x
    convolution = Convolution(PHASES * batch * height * width, outputs, TAPS, channels // DEPTH, 0, False)
    return best_tiling_on(device, convolution, batch, height, width, most_splits=1)
