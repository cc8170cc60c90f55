"""Products of int8 and of e4m3 by the CUDA extension, on Hopper: persistent, with scales and bias in the epilogue.

H100, 4608 x 3072 x 9216: int8 179 us (1454 TOP/s), PyTorch's product alone 381; e4m3 213 us, PyTorch's 185
(docs/notes/0023). The kernel is in ``csrc/scaled_linear.cu``.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from ...native import load
from ...target import Target
from ..needs import HALVES
from ..packs import dense
from ..spec import Arguments
from .constraints import why_not_multiples, why_not_out, why_not_quantised

KINDS = {torch.int8: 0, torch.float8_e4m3fn: 1}  #: their codes in csrc/scaled_linear.cu
ACTS = {"none": 0, "silu": 1, "gelu": 3, "gelu_tanh": 4}  #: likewise
TILE_ROWS = 128
COLUMN_UNIT, DEPTH_UNIT = 8, 16


class Tiling(NamedTuple):
    """The cut: tiles of 128 rows and ``columns``; ``sharing`` blocks share them, ``band`` groups of these at a time."""

    columns: int
    sharing: int
    band: int

    def fitting(self, rows: int) -> Tiling:
        """This cut where there are so many rows: no more blocks share columns than have rows."""
        tiles = -(-rows // TILE_ROWS)
        return self._replace(sharing=min(self.sharing, 1 if tiles == 1 else 2 if tiles < 4 else 4))


class Gate(NamedTuple):
    """The linear layer that a gated one's result is multiplied by, behind the activation: of the same input, of as many
    features, with a bias in the same dtype or with none, as the gated one.
    """

    weight: torch.Tensor
    scale: torch.Tensor
    bias: torch.Tensor | None


#: Of 15 cuts at 18 shapes of Flux, Z-Image, Qwen-Image, Wan and SDXL one of these is 0.8% behind the fastest in the
#: mean, 7% at most (H100).
TILINGS = (Tiling(256, 2, 4), Tiling(256, 2, 16), Tiling(192, 4, 8), Tiling(128, 4, 8))


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why the kernel can't compute this, or None."""
    if reason := why_not_quantised(call, tuple(KINDS)):
        return reason
    return why_not_multiples(call.weight, COLUMN_UNIT, DEPTH_UNIT) or why_not_out(call.out_dtype, *HALVES)


def launch(x, weight, weight_scale, bias, input_scale, out_dtype, rotate=0, *, rank: int = 0) -> torch.Tensor:
    """As :func:`.reference.scaled_linear`, cut as :data:`TILINGS` says at ``rank``; sums of e4m3 keep about 14 bits."""
    return launch_tiled(TILINGS[rank], x, weight, weight_scale, bias, input_scale, out_dtype)


def launch_tiled(
    tiling: Tiling,
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    bias: torch.Tensor | None,
    input_scale: torch.Tensor,
    out_dtype: torch.dtype,
    act: str = "none",
    gate: Gate | None = None,
) -> torch.Tensor:
    """As :func:`launch`, cut as told, with an activation of :data:`ACTS`; with a gate, ``y * act(gate's y)``."""
    rows, matrix = dense(x), dense(weight)
    row_scales = input_scale.contiguous()
    column_scales = weight_scale.contiguous()
    shift = None if bias is None else bias.contiguous()
    gate = gate and Gate(
        dense(gate.weight), gate.scale.contiguous(), None if gate.bias is None else gate.bias.contiguous()
    )
    columns, depth = weight.shape
    count = x.numel() // depth
    out = torch.empty((*x.shape[:-1], columns), dtype=out_dtype, device=x.device)
    fitting = tiling.fitting(count)
    load.launch(
        "sfast_scaled_linear",
        x.device,
        f"scaled_linear for x {tuple(x.shape)}, weight {tuple(weight.shape)} {x.dtype}",
        x=rows,
        weight=matrix,
        gate_weight=gate and gate.weight,
        row_scales=row_scales,
        row_scale_step=int(row_scales.numel() > 1),
        column_scales=column_scales,
        gate_scales=gate and gate.scale,
        column_scale_step=int(column_scales.numel() > 1),
        bias=shift,
        gate_bias=gate and gate.bias,
        bias_dtype=load.dtype_of(shift),
        out=out,
        rows=count,
        columns=columns,
        depth=depth,
        kind=KINDS[x.dtype],
        act=ACTS[act],
        dtype=load.DTYPES[out_dtype],
        tile_columns=fitting.columns,
        sharing=fitting.sharing,
        band=fitting.band,
    )
    return out
