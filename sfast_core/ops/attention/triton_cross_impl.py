"""Attention with at most 128 keys, mostly a prompt's: one program keeps all of them and goes through its queries."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton

from ...target import Target
from ..spec import Arguments
from ..triton_launch import launcher
from ..triton_operand import operand
from .constraints import why_not_aligned, why_not_alike
from .triton_kernels import cross_attention_kernel

MAX_KEYS = 128
MAX_HEAD = 160
PROGRAMS_PER_SM = 2
MAX_BLOCKS = 2


class Tiling(NamedTuple):
    """The tile of one program. Keys and head size are each two powers of two, the second may be 0."""

    block_l: int
    keys: tuple[int, int]
    head: tuple[int, int]
    warps: int
    stages: int

    @property
    def shared_bytes(self) -> int:
        """At most: Triton keeps keys and values twice where tensor cores read them from registers (not on Hopper)."""
        return 2 * sum(self.head) * (4 * sum(self.keys) + 2 * self.block_l) + 1024


def tiling(keys: int, head: int) -> Tiling:
    """64 queries at a time: 128 by 8 warps took 9.4 instead of 8.1 us (H100, 2x20 heads of 64, 1024 queries)."""
    parts = _parts(head)
    return Tiling(64, _parts(keys), parts, 4, 1 if sum(parts) > 96 else 2)


def _parts(size: int) -> tuple[int, int]:
    """``size`` rounded up to the sum of two powers of two (16 or more) or one: 77 to 64 + 16, 128 to 128 + 0."""
    whole = max(16, triton.next_power_of_2(size))
    rest = max(16, triton.next_power_of_2(max(1, size - whole // 2)))
    return (whole // 2, rest) if whole >= 32 and whole // 2 + rest < whole else (whole, 0)


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why the kernel can't compute this, or None."""
    if reason := why_not_alike(call, largest=MAX_HEAD):
        return reason
    if call.k.shape[2] > MAX_KEYS:
        return f"{call.k.shape[2]} keys are more than {MAX_KEYS}"
    # a UNet's lowest level at some size: a second to compile, for one layer that others are nearly as fast at
    if call.q.shape[2] == call.k.shape[2]:
        return f"the {call.k.shape[2]} keys are as many as the queries"
    if call.q.shape[0] * call.q.shape[1] > 65535:
        return f"batch x heads is {call.q.shape[0] * call.q.shape[1]}, more than 65535"
    if reason := why_not_aligned(call.q, call.k, call.v):
        return reason
    needed = tiling(call.k.shape[2], call.q.shape[3]).shared_bytes
    if needed > target.shared_memory_bytes:
        return f"needs {needed} bytes of shared memory per block, this has {target.shared_memory_bytes}"
    return None


def launch(q, k, v, mask=None, is_causal=False, scale=None) -> torch.Tensor:
    """As :func:`.reference.attention`, without mask."""
    batch, heads, queries, depth = q.shape
    out = q.new_empty((batch, queries, heads, depth))
    if out.numel() > 0:
        plan = tiling(k.shape[2], depth)
        blocks = blocks_per_program(-(-queries // plan.block_l), batch * heads, _multiprocessors(q.device))
        launch_tiled(plan, blocks, q, k, v, depth**-0.5 if scale is None else scale, out)
    return out.transpose(1, 2)


def launch_tiled(
    plan: Tiling, blocks: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, out: torch.Tensor
) -> None:
    """Compute into ``out`` [B, L, H, D], which is not empty, with ``blocks`` blocks of queries per program."""
    batch, heads, queries, depth = q.shape
    if any(stride % 8 for tensor in (q, k, v) for stride in tensor.stride()[:3]):  # why_not saw other strides
        raise ValueError(
            f"attention.triton_cross: rows must be 16-byte aligned, got strides {q.stride()}, {k.stride()},"
            f" {v.stride()}"
        )
    chunk = plan.block_l * blocks
    launcher(cross_attention_kernel, (-(-queries // chunk), batch * heads))(
        q,
        k,
        v,
        out,
        queries,
        k.shape[2],
        heads,
        depth // 8,
        chunk,
        *(stride // 8 for tensor in (q, k, v) for stride in tensor.stride()[:3]),
        scale * math.log2(math.e),
        BLOCK_L=plan.block_l,
        S0=plan.keys[0],
        S1=plan.keys[1],
        D0=plan.head[0],
        D1=plan.head[1],
        OPERAND=operand(q),
        num_warps=plan.warps,
        num_stages=plan.stages,
        enable_fp_fusion=True,
    )


def blocks_per_program(blocks: int, heads: int, multiprocessors: int) -> int:
    """How many blocks of queries share a load of the keys: two where enough programs are left; four were no faster."""
    return max(1, min(MAX_BLOCKS, blocks, blocks * heads // (PROGRAMS_PER_SM * multiprocessors)))


def _multiprocessors(device: torch.device) -> int:
    """Of the device; in Triton's interpreter one, so that programs take several blocks."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
