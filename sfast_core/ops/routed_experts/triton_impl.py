"""A mixture of experts in four Triton launches: which pairs of token and choice each expert gets, its two products of
these rows alone, and the sum over a token's choices.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from ...target import Target
from ..linear.triton_gate_impl import gate_kind
from ..packs import contiguous, dense
from ..scaled_linear.triton_impl import float8_of
from ..spec import Arguments
from ..triton_launch import capacity, launcher
from ..triton_operand import operand
from .triton_kernels import expert_linear_kernel, route_kernel

ACTS = ("gelu", "gelu_tanh", "silu", "relu")
_GROUP_ROWS = 8  # blocks of rows that share a column of the weight in L2
_RESERVED = 1024  # bytes of shared memory that no buffer gets


class Tile(NamedTuple):
    """How a product is cut: rows, columns and depth of a step, and the warps of a program."""

    rows: int
    cols: int
    depth: int
    warps: int

    def stages(self, x_size: int, weight_size: int, weights: int, shared_bytes: int) -> int:
        """How many steps' operands, numbers of these sizes, fit into shared memory, 4 at most."""
        step = (self.rows * x_size + weights * self.cols * weight_size) * self.depth
        return int(min(4, (shared_bytes - _RESERVED) // step))


class Routes(NamedTuple):
    """Each expert's pairs of a token and a choice: (E, pairs) of int32, in order, ``counts`` (E,) of them."""

    places: torch.Tensor
    counts: torch.Tensor


class Layer(NamedTuple):
    """One layer of all experts: their weights (E * H, D) one below the other, perhaps with a gate of as many features;
    of 8 bits with scales, one for each feature or for each expert.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None = None
    gate: torch.Tensor | None = None
    scale: torch.Tensor | None = None
    gate_scale: torch.Tensor | None = None


_TILES = (Tile(128, 128, 64, 8), Tile(64, 64, 64, 4), Tile(32, 64, 32, 4))
#: Of 8 bits: the first of one weight.
_TILES_OF_BYTES = (Tile(128, 256, 128, 8), Tile(128, 128, 128, 8), Tile(64, 64, 128, 4), Tile(32, 64, 64, 4))


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why the kernels can't compute this, or None."""
    x, indices, scores, first, second = call.x, call.indices, call.scores, call.first, call.second
    if call.act not in ACTS:
        return f"act is {call.act!r}, must be {' or '.join(ACTS)}"
    if indices.dtype != torch.int64 or indices.dim() != 2 or indices.shape != scores.shape:
        return f"indices are {indices.dtype} {list(indices.shape)}, scores {list(scores.shape)}"
    if first.dim() != 2 or second.dim() != 2 or first.shape[0] % call.experts or second.shape[0] % call.experts:
        return f"weights are {list(first.shape)} and {list(second.shape)} for {call.experts} experts"
    if first.shape[1] != x.shape[1] or second.shape[1] * call.experts != first.shape[0]:
        return f"x is {list(x.shape)}, weights are {list(first.shape)} and {list(second.shape)}"
    if call.gate is not None and (call.gate.shape != first.shape or call.first_bias is not None):
        return "the gate is of another shape than what it is for, or that has a bias"
    if indices.shape[0] != x.shape[0] or not 0 < indices.numel() < 2**31 or x.shape[1] == 0:
        return f"x is {list(x.shape)}, indices are {list(indices.shape)}"
    return None


def launch(x, indices, scores, first, first_bias, second, second_bias, experts, act="gelu", gate=None) -> torch.Tensor:
    """As :func:`.reference.routed_experts`, with the hidden rows rounded once, and each expert's part of the sum."""
    routes = routes_of(indices, experts)
    kind = "relu" if act == "relu" else gate_kind(x.dtype, act)
    hidden = product(dense(x), Layer(first, first_bias, gate), routes, x.dtype, repeat=indices.shape[1], kind=kind)
    parts = product(hidden, Layer(second, second_bias), routes, x.dtype, scores=scores)
    return parts.view(*indices.shape, -1).sum(1)


def routes_of(indices: torch.Tensor, experts: int) -> Routes:
    """What the gate has chosen, (T, K) of int64."""
    pairs = indices.numel()
    places = torch.empty((experts, pairs), dtype=torch.int32, device=indices.device)
    counts = torch.empty(experts, dtype=torch.int32, device=indices.device)
    block = min(4096, triton.next_power_of_2(pairs))
    launcher(route_kernel, (experts,))(indices.contiguous(), places, counts, pairs, BLOCK=block, num_warps=8)
    return Routes(places, counts)


def product(
    x: torch.Tensor,
    layer: Layer,
    routes: Routes,
    dtype: torch.dtype,
    repeat: int = 1,
    kind: str = "none",
    scores: torch.Tensor | None = None,
    row_scales: torch.Tensor | None = None,
    out_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """A row of ``dtype`` for each pair: what its expert's layer makes of x's row, which ``repeat`` pairs share.

    Args:
        x: (pairs / repeat, D), dense.
        layer: of all experts.
        routes: which pairs each gets.
        dtype: of the result: float8 with ``out_scale``, by which it is divided.
        repeat: pairs of a row.
        kind: the activation, as the kernel knows it.
        scores: (T, K): what rows are multiplied by.
        row_scales: of an x of 8 bits: one, or one for each row.
        out_scale: one.
    """
    experts, pairs = routes.places.shape
    weight, bias, gate, scale, gate_scale = layer
    width, depth = weight.shape[0] // experts, weight.shape[1]
    out = x.new_empty((pairs, width), dtype=dtype)
    tile, stages = _tile(pairs // experts, x, weight, 1 if gate is None else 2)
    blocks = pairs // tile.rows + experts
    multiplied = _operand(x)
    launcher(expert_linear_kernel, (blocks * triton.cdiv(width, tile.cols),))(
        x,
        dense(weight),
        None if gate is None else dense(gate),
        *contiguous(bias, scores, row_scales, scale, gate_scale),
        out_scale,
        *routes,
        out,
        pairs,
        width,
        depth,
        blocks,
        _GROUP_ROWS,
        EXPERTS=experts,
        REPEAT=repeat,
        KIND=kind,
        ROW_STEP=int(row_scales is not None and row_scales.numel() > 1),
        BY_FEATURE=scale is not None and scale.numel() > experts,
        LIMIT=0.0 if out_scale is None else torch.finfo(dtype).max,
        BY_HAND=x.device.type == "cpu",
        BLOCK_M=tile.rows,
        BLOCK_N=tile.cols,
        BLOCK_K=tile.depth,
        OPERAND=multiplied,
        SUM=tl.int32 if multiplied == tl.int8 else tl.float32,
        num_warps=tile.warps,
        num_stages=stages,
    )
    return out


def _operand(x: torch.Tensor) -> tl.dtype:
    if x.dtype == torch.int8:
        return tl.int8
    return float8_of(x) if x.itemsize == 1 else tl.float32 if x.dtype == torch.float32 else operand(x)


def _tile(rows: int, x: torch.Tensor, weight: torch.Tensor, weights: int) -> tuple[Tile, int]:
    """The largest tile that an expert's share of the rows fills, and of which two steps fit into shared memory."""
    shared_bytes = capacity(x.device)[1]
    tiles = _TILES if x.itemsize > 1 else _TILES_OF_BYTES[weights - 1 :]
    for tile in tiles[:-1]:
        stages = tile.stages(x.itemsize, weight.itemsize, weights, shared_bytes)
        if rows >= tile.rows and stages >= 2 and (x.itemsize <= 2 or tile.rows < 128):
            return tile, stages
    return tiles[-1], max(2, tiles[-1].stages(x.itemsize, weight.itemsize, weights, shared_bytes))
