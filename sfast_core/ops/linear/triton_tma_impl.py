"""GEGLU in the epilogue of one persistent GEMM that reads through TMA descriptors: compute capability 9.0 and later."""

from __future__ import annotations

from typing import NamedTuple

import torch
from triton.tools.tensor_descriptor import TensorDescriptor  # Triton 3.4 and later

from ...target import Target
from ..spec import Arguments
from ..triton_launch import capacity, launcher
from ..triton_operand import operand
from .constraints import why_no_gate
from .triton_gate_impl import gate_kind
from .triton_kernels import linear_geglu_kernel

BLOCK_K = 64  # a row of 128 bytes: TMA's widest swizzle
GROUP_ROWS = 16  # blocks of rows that share a column of the weight in L2
BARRIER_BYTES = 1024
WORTH = 0.05


class Tile(NamedTuple):
    """A cut of the result: blocks of ``rows`` x ``cols`` gated columns, ``per_sm`` at a time on a multiprocessor."""

    rows: int
    cols: int
    warps: int
    stages: int  #: buffers of x and weight in shared memory, fewer where they don't fit
    per_sm: int
    rate: float  #: of a full multiprocessor, next to the first of TILES

    def stage_bytes(self) -> int:
        """Shared memory of one buffer: BLOCK_K columns of the rows of x, of the value and of the gate."""
        return (self.rows + 2 * self.cols) * BLOCK_K * 2

    def fit(self, shared_bytes: int) -> Tile | None:
        """This tile with as many stages as fit into a block's shared memory, or None if two don't."""
        stages = (shared_bytes - BARRIER_BYTES - self.rows * self.cols * 2) // self.stage_bytes()
        return self._replace(stages=min(self.stages, stages)) if stages >= 2 else None


#: 64 x 64 would be for the one call at SD1.5's lowest level, at some sizes: 12.7 us where ``triton_gate`` takes 14.1
#: (H100), and 0.7 s to compile.
TILES = (
    Tile(128, 128, 8, 4, 1, 1.0),
    Tile(128, 64, 4, 3, 2, 0.9),
)


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why the kernel can't compute this, or None."""
    if reason := why_no_gate(call) or _why_not_rows(call.x, call.weight, call.bias):
        return reason
    if not any(tile.fit(target.shared_memory_bytes) for tile in TILES):
        return f"{target.shared_memory_bytes} bytes of shared memory per block are too few"
    return None


def _why_not_rows(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> str | None:
    """What TMA asks for: rows, and the distances between them, of whole 16-byte units."""
    rows, depth = weight.shape
    if rows == 0 or depth == 0:
        return "weight is empty"
    if rows % 16:
        return f"weight has {rows} rows, not a multiple of 16"
    if depth % 8:
        return f"x has {depth} columns, not a multiple of 8"
    if weight.stride(1) != 1 or weight.stride(0) < depth or weight.stride(0) % 8 or weight.storage_offset() % 8:
        return f"weight's rows are not contiguous and 16-byte aligned (strides {weight.stride()})"
    if bias is not None and not bias.is_contiguous():
        return "bias is not contiguous"
    return None if x.numel() // depth < 2**31 else f"x has too many rows, {x.numel() // depth}"


def launch(x, weight, bias=None, act="none", gated=False, residual=None, gate_first=False) -> torch.Tensor:
    """As :func:`.reference.linear`, with value and gate in float32 until the result is rounded, once."""
    inner = weight.shape[0] // 2
    out = x.new_empty((*x.shape[:-1], inner))
    rows = out.numel() // inner
    if rows == 0:
        return out
    multiprocessors, shared_bytes = capacity(x.device)
    tile = choose(rows, inner, multiprocessors, shared_bytes)
    return launch_tile(tile, multiprocessors, x, weight, bias, act, out, gate_first)


def launch_tile(
    tile: Tile,
    multiprocessors: int,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    act: str,
    out: torch.Tensor,
    gate_first: bool = False,
) -> torch.Tensor:
    """Compute into ``out``, which is not empty, with this tile; returns it."""
    inner, depth = weight.shape[0] // 2, weight.shape[1]
    rows = out.numel() // inner
    source = _aligned_rows(x, depth)
    blocks = -(-rows // tile.rows) * -(-inner // tile.cols)
    programs = min(multiprocessors * tile.per_sm, blocks)
    launcher(linear_geglu_kernel, (programs,))(
        TensorDescriptor(source, [rows, depth], [source.stride(0), 1], [tile.rows, BLOCK_K]),
        TensorDescriptor(
            weight, [2, inner, depth], [inner * weight.stride(0), weight.stride(0), 1], [2, tile.cols, BLOCK_K]
        ),
        out if bias is None else bias,
        TensorDescriptor(out, [rows, inner], [inner, 1], [tile.rows, tile.cols]),
        rows,
        inner,
        depth,
        GROUP_ROWS,
        programs,
        KIND=gate_kind(x.dtype, act),
        GATE_FIRST=gate_first,
        HAS_BIAS=bias is not None,
        BLOCK_M=tile.rows,
        BLOCK_H=tile.cols,
        BLOCK_K=BLOCK_K,
        OPERAND=operand(x),
        num_warps=tile.warps,
        num_stages=tile.stages,
        enable_fp_fusion=True,
    )
    return out


def choose(rows: int, inner: int, multiprocessors: int, shared_bytes: int) -> Tile:
    """The tile by which the busiest multiprocessor is done first: a large one, if its blocks leave few idle.

    A smaller one must save WORTH: each that a model's sizes have in common is half a second less of compiling at a new
    one.
    """
    fitting = [tile for candidate in TILES if (tile := candidate.fit(shared_bytes))]

    def cost(tile: Tile) -> float:
        blocks = -(-rows // tile.rows) * -(-inner // tile.cols)
        return -(-blocks // multiprocessors) * tile.rows * tile.cols / tile.rate

    chosen, *others = fitting
    for tile in others:
        if cost(tile) < (1 - WORTH) * cost(chosen):
            chosen = tile
    return chosen


def _aligned_rows(x: torch.Tensor, depth: int) -> torch.Tensor:
    """x as [rows, K] that TMA can read; copied only where its rows are not contiguous and 16-byte aligned."""
    source = x.reshape(-1, depth)
    if source.stride(1) != 1 or source.stride(0) < depth or source.stride(0) % 8 or source.data_ptr() % 16:
        return source.clone(memory_format=torch.contiguous_format)
    return source
