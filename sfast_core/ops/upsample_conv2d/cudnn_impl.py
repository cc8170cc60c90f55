"""Four convolutions by cuDNN with the bias in their epilogue, each padded just as its phase needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..constraints import why_no_triton
from ..conv2d_act.cudnn_plans import Geometry, as_operand, plans, why_no_library
from ..conv2d_act.reference import memory_format_of
from .constraints import why_not_shapes
from .phases import PHASES, empty_image, interleave, phase_weights

if TYPE_CHECKING:
    from ...target import Target


def why_not(target: Target, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> str | None:
    """The reason why cuDNN can't compute this, or None."""
    if reason := why_no_triton(target) or why_not_shapes(x, weight, bias):
        return reason
    if x.dtype not in (torch.float16, torch.bfloat16):
        return f"x is {str(x.dtype).removeprefix('torch.')}, must be float16 or bfloat16"
    if bias is None:
        return "has no bias"
    if x.numel() == 0 or weight.numel() == 0:
        return f"x is {list(x.shape)}, weight {list(weight.shape)}, must not be empty"
    if weight.shape[0] % 8:
        return f"{weight.shape[0]} outputs are no multiple of 8: the phases would not begin on 16 bytes"
    if 4 * max(x.numel(), x.numel() // x.shape[1] * weight.shape[0]) >= 2**31:
        return f"x of {list(x.shape)} is too large for {weight.shape[0]} outputs"
    return why_no_library()


def launch(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """As :func:`.reference.upsample_conv2d`, each phase written to its place; sums of taps are rounded to x's dtype, then the result.

    At the models' sizes every plan that cuDNN 9.19 proposes for an H100 asks for a workspace as large as the phase: it computes a dense
    result and copies it. Where that is cheaper than a pass of our own is measured.

    Raises:
        RuntimeError: cuDNN has no plan for it.
    """
    out = empty_image(x, weight.shape[0], 2)
    _convolve(x, weight, bias, [out[:, :, i::2, j::2] for i, j in PHASES])
    return out.contiguous(memory_format=memory_format_of(x))


def launch_dense(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """As :func:`launch`, with dense results and one pass that puts them together.

    Raises:
        RuntimeError: cuDNN has no plan for it.
    """
    out = empty_image(x, weight.shape[0], 2)
    results = [empty_image(x, weight.shape[0], 1) for _ in PHASES]
    _convolve(x, weight, bias, results)
    with torch.cuda.device_of(out):
        interleave(results, None, out)
    return out.contiguous(memory_format=memory_format_of(x))


def _convolve(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, results: list[torch.Tensor]) -> None:
    """Write each phase to its place in ``results``, as it lies."""
    x, bias = as_operand(x), as_operand(bias)
    with torch.cuda.device_of(x):
        weights = phase_weights(weight)
    for (i, j), result in zip(PHASES, results, strict=True):
        operands = {"x": x, "weight": as_operand(weights[i, j]), "bias": bias, "out": result}
        plans().run(_geometry(x, weights[i, j], (i, j), result), 0, operands)


def _geometry(x: torch.Tensor, weight: torch.Tensor, phase: tuple[int, int], result: torch.Tensor) -> Geometry:
    i, j = phase
    dense = result.is_contiguous(memory_format=torch.channels_last)
    return Geometry(
        device=x.device.index if x.device.index is not None else 0,
        dtype=x.dtype,
        x=tuple(x.shape),
        weight=tuple(weight.shape),
        stride=(1, 1),
        padding=(1 - i, 1 - j),
        dilation=(1, 1),
        relu=False,
        post_padding=(i, j),
        out_strides=None if dense else tuple(result.stride()),
    )
