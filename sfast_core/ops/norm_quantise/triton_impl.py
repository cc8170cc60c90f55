"""Residual, norm, modulation, rotation and quantising in one Triton kernel: each row is read once and stays in
registers.
"""

from __future__ import annotations

import torch

from ...target import Target
from .. import quantise
from ..packs import contiguous
from ..row_constraints import why_not_modulation, why_not_sum, why_not_vectors, why_without
from ..spec import Arguments
from ..triton_launch import launcher
from ..triton_operand import dtype_of
from ..triton_rows import last_part, modulation_rows, modulation_strides, row_tile, why_too_long
from .triton_kernels import norm_quantise_kernel

_SMALLEST_BLOCK = 16


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why the kernel can't compute this, or None."""
    by_row, of_all = quantise.OP.impls
    given = Arguments.of(quantise.quantise, call.x, call.dtype, call.input_scale, call.rotate, by_range=call.by_range)
    if reason := (by_row if call.input_scale is None else of_all).against(target, given) or why_too_long(
        call.x.shape[-1]
    ):
        return reason
    if call.norm not in ("layer", "rms"):
        return f'norm is "{call.norm}", must be "layer" or "rms"'
    for name, given in (
        (("x_weight", call.x_weight),) if call.norm == "layer" else (("bias", call.bias), ("x_bias", call.x_bias))
    ):
        if given is not None:
            return f'{name} with norm "{call.norm}"'
    if call.offset and (call.weight is None or call.norm == "layer"):
        return 'an offset without a weight, or with norm "layer"'
    wide = (torch.float32,) if call.norm == "rms" else ()
    return (
        why_without(call.residual, {"gate": call.gate})
        or why_not_sum(call.x, call.residual, x_bias=call.x_bias, x_weight=call.x_weight)
        or why_not_vectors(call.x, *wide, weight=call.weight)
        or why_not_vectors(call.x, bias=call.bias)
        or why_not_modulation(call.x, call.part, scale=call.scale, shift=call.shift, gate=call.gate)
    )


def launch(
    x,
    norm,
    eps,
    dtype,
    input_scale=None,
    rotate=0,
    weight=None,
    bias=None,
    scale=None,
    shift=None,
    residual=None,
    gate=None,
    x_bias=None,
    x_weight=None,
    by_range=False,
    part=1,
    offset=0.0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As :func:`.reference.norm_quantise`."""
    rows_in, channels = x.contiguous(), x.shape[-1]
    rows = x.numel() // channels
    total = x if residual is None else torch.empty_like(rows_in)
    q = torch.empty(x.shape, dtype=dtype, device=x.device)
    if input_scale is None:
        factors = torch.empty((*x.shape[:-1], 1), dtype=torch.float32, device=x.device)
    else:
        factors = torch.empty_like(input_scale)
    tile = row_tile(max(channels, rotate, _SMALLEST_BLOCK), few_tensors=x_weight is None)
    vectors = contiguous(x_weight, x_bias, weight, bias)
    modulation = modulation_rows(gate, scale, shift)
    launcher(norm_quantise_kernel, (-(-rows // tile.rows),))(
        rows_in,
        *contiguous(residual),
        *vectors[:2],
        modulation[0],
        *vectors[2:],
        *modulation[1:],
        None if residual is None else total,
        q,
        input_scale,
        factors,
        rows,
        x.shape[1] if x.dim() == 3 else rows,
        channels,
        part,
        last_part(modulation),
        *modulation_strides(modulation),
        eps,
        offset,
        RMS=norm == "rms",
        NARROW=dtype_of(x),
        GROUP=rotate,
        BY_RANGE=by_range,
        LIMIT=torch.finfo(dtype).max if dtype.is_floating_point else 0.0,
        BY_HAND=x.device.type == "cpu",
        BLOCK=tile.block,
        ROWS=tile.rows,
        num_warps=tile.warps,
    )
    return total, q, factors
