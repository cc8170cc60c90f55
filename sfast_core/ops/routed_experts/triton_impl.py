"""A mixture of experts in four Triton launches: which pairs of token and choice each expert gets, its two products of
these rows alone, and the sum over a token's choices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import triton
import triton.language as tl

from ..linear.triton_gate_impl import gate_kind
from ..packs import dense
from ..triton_launch import capacity, launcher
from ..triton_operand import operand
from .triton_kernels import expert_linear_kernel, route_kernel

if TYPE_CHECKING:
    from ...target import Target
    from ..spec import Arguments

_ACTS = ("gelu", "gelu_tanh", "silu", "relu")
_GROUP_ROWS = 8  # blocks of rows that share a column of the weight in L2
_RESERVED = 1024  # bytes of shared memory that no buffer gets


class Tile(NamedTuple):
    """How a product is cut: rows, columns and depth of a step, and the warps of a program."""

    rows: int
    cols: int
    depth: int
    warps: int

    def stages(self, itemsize: int, weights: int, shared_bytes: int) -> int:
        """How many steps' operands fit into shared memory, 4 at most."""
        step = (self.rows + weights * self.cols) * self.depth * itemsize
        return int(min(4, (shared_bytes - _RESERVED) // step))


_TILES = (Tile(128, 128, 64, 8), Tile(64, 64, 64, 4), Tile(32, 64, 32, 4))


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why the kernels can't compute this, or None."""
    x, indices, scores, first, second = call.x, call.indices, call.scores, call.first, call.second
    if call.act not in _ACTS:
        return f"act is {call.act!r}, must be {' or '.join(_ACTS)}"
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


def launch(
    x: torch.Tensor,
    indices: torch.Tensor,
    scores: torch.Tensor,
    first: torch.Tensor,
    first_bias: torch.Tensor | None,
    second: torch.Tensor,
    second_bias: torch.Tensor | None,
    experts: int,
    act: str = "gelu",
    gate: torch.Tensor | None = None,
) -> torch.Tensor:
    """As :func:`.reference.routed_experts`, with the hidden rows rounded once, and each expert's part of the sum."""
    pairs, choices = indices.numel(), indices.shape[1]
    places = torch.empty((experts, pairs), dtype=torch.int32, device=x.device)
    counts = torch.empty(experts, dtype=torch.int32, device=x.device)
    with torch.cuda.device_of(x):
        launcher(route_kernel, (experts,))(
            indices.contiguous(), places, counts, pairs, BLOCK=min(4096, triton.next_power_of_2(pairs)), num_warps=8
        )
        routes = places, counts, pairs, experts
        kind = "relu" if act == "relu" else gate_kind(x.dtype, act)
        hidden = _product(dense(x), first, gate, first_bias, None, routes, choices, kind)
        parts = _product(hidden, second, None, second_bias, scores.contiguous(), routes, 1, "none")
    return parts.view(x.shape[0], choices, -1).sum(1)


def _product(
    x: torch.Tensor,
    weight: torch.Tensor,
    gate: torch.Tensor | None,
    bias: torch.Tensor | None,
    scores: torch.Tensor | None,
    routes: tuple[torch.Tensor, torch.Tensor, int, int],
    repeat: int,
    kind: str,
) -> torch.Tensor:
    """A row for each pair."""
    places, counts, pairs, experts = routes
    width, depth = weight.shape[0] // experts, weight.shape[1]
    out = x.new_empty((pairs, width))
    tile, stages = _tile(pairs // experts, x, 1 if gate is None else 2)
    blocks = pairs // tile.rows + experts
    launcher(expert_linear_kernel, (blocks * triton.cdiv(width, tile.cols),))(
        x,
        dense(weight),
        out if gate is None else dense(gate),
        out if bias is None else dense(bias),
        out if scores is None else scores,
        places,
        counts,
        out,
        pairs,
        width,
        depth,
        blocks,
        _GROUP_ROWS,
        EXPERTS=experts,
        REPEAT=repeat,
        KIND=kind,
        GATED=gate is not None,
        HAS_BIAS=bias is not None,
        SCALED=scores is not None,
        BLOCK_M=tile.rows,
        BLOCK_N=tile.cols,
        BLOCK_K=tile.depth,
        OPERAND=tl.float32 if x.dtype == torch.float32 else operand(x),
        num_warps=tile.warps,
        num_stages=stages,
    )
    return out


def _tile(rows: int, x: torch.Tensor, weights: int) -> tuple[Tile, int]:
    """The largest tile that an expert's share of the rows fills, and of which two steps fit into shared memory."""
    shared_bytes = capacity(x.device)[1]
    for tile in _TILES[:-1]:
        stages = tile.stages(x.itemsize, weights, shared_bytes)
        if rows >= tile.rows and stages >= 2 and (x.itemsize == 2 or tile.rows < 128):
            return tile, stages
    return _TILES[-1], max(2, _TILES[-1].stages(x.itemsize, weights, shared_bytes))
