"""RMSNorm and rotary embedding in one Triton kernel: reads queries or keys where the projection left them, writes them
joined.
"""

from __future__ import annotations

import torch
import triton

from ...target import Target
from ..spec import Arguments
from ..triton_launch import launcher
from ..triton_rows import MAX_CHANNELS
from .reference import are_angles
from .triton_kernels import norm_rope_kernel

# The fastest of those in docs/notes/0047-what-a-norm-takes-along.md (H100).
PROGRAM_ELEMENTS = 1024  #: of one token
THREAD_ELEMENTS = 16
WIDE_THREAD_ELEMENTS = 32  #: where the norm is over all heads
SMALLEST_HEAD, LARGEST_HEAD = 16, 256


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why the kernel can't compute this, or None."""
    images, tokens, heads, size = call.x.shape
    if size % 2 or not SMALLEST_HEAD <= size <= LARGEST_HEAD:
        return f"heads of {size} are odd, or not of {SMALLEST_HEAD} to {LARGEST_HEAD}"
    if call.halves and size != triton.next_power_of_2(size):
        return f"halves of heads of {size}, which is no power of two"
    if call.behind is not None:
        if (
            call.behind.dim() != 4
            or (call.behind.shape[0], *call.behind.shape[2:]) != (images, heads, size)
            or call.behind.dtype != call.x.dtype
        ):
            return f"behind is {list(call.behind.shape)} {call.behind.dtype}, x is {list(call.x.shape)} {call.x.dtype}"
        tokens += call.behind.shape[1]
    if call.rotations is not None and call.rotations.dtype not in (torch.float32, call.x.dtype):
        return f"rotations are {call.rotations.dtype}, must be torch.float32 or {call.x.dtype}"
    if call.rotations is not None and tuple(call.rotations.shape) not in _shapes(images, tokens, heads, size):
        shapes = f"{[images, tokens, size // 2, 2, 2]} or {[images, tokens, size // 2, 2]}"
        return f"rotations are {list(call.rotations.shape)}, must be {shapes}"
    for name, tensor in (("weight", call.weight), ("behind_weight", call.behind_weight)):
        if tensor is not None and (
            tuple(tensor.shape) not in {(size,), (heads * size,)}
            or tensor.dtype not in (call.x.dtype, torch.float32)
            or call.eps is None
        ):
            return (
                f"{name} is {list(tensor.shape)} {tensor.dtype}, must be {[size]} or {[heads * size]} {call.x.dtype},"
                f" and eps {call.eps} a number"
            )
    if call.behind is not None and _is_wide(call.weight, size) != _is_wide(call.behind_weight, size):
        return "one stream's norm is over all heads, the other's is not"
    if _is_wide(call.weight, size) and triton.next_power_of_2(heads) * triton.next_power_of_2(size) > MAX_CHANNELS:
        return f"{heads} heads of {size} are more than {MAX_CHANNELS} channels"
    return None


def _shapes(images: int, tokens: int, heads: int, size: int) -> set[tuple[int, ...]]:
    """Those that rotations may have."""
    pairs = ((size // 2, 2, 2), (size // 2, 2))
    return {(count, tokens, *by_head, *pair) for count in (1, images) for by_head in ((), (heads,)) for pair in pairs}


def _is_wide(weight: torch.Tensor | None, size: int) -> bool:
    """Whether the norm is over all heads of a token."""
    return weight is not None and weight.shape[0] != size


def launch(x, weight, rotations, eps, behind=None, behind_weight=None, halves=False, offset=0.0) -> torch.Tensor:
    """As :func:`.reference.norm_rope`."""
    images, length, heads, size = x.shape
    total = length if behind is None else length + behind.shape[1]
    out = torch.empty((images, total, heads, size), dtype=x.dtype, device=x.device)
    rotations = None if rotations is None else rotations.contiguous()
    angles = rotations is not None and are_angles(rotations, size)
    by_head = rotations is not None and rotations.dim() == (5 if angles else 6)
    wide, block = _is_wide(weight, size), triton.next_power_of_2(size)
    program_heads = triton.next_power_of_2(heads)
    if not wide:
        program_heads = min(program_heads, PROGRAM_ELEMENTS // block)
    streams = [(x, weight, 0)] if behind is None else [(x, weight, 0), (behind, behind_weight, length)]
    for tokens, own_weight, first in streams:
        if tokens.numel() == 0:
            continue
        rows = tokens if tokens.stride(-1) == 1 else tokens.contiguous()
        launcher(norm_rope_kernel, (images * tokens.shape[1], -(-heads // program_heads)))(
            rows,
            None if own_weight is None else own_weight.contiguous(),
            rotations,
            out,
            first,
            total,
            images,
            heads,
            *rows.stride()[:3],
            0 if rotations is None or rotations.shape[0] == 1 else rotations.stride(0),
            0.0 if eps is None else eps,
            offset,
            D=size,
            BLOCK_D=block,
            HEADS=program_heads,
            NORM=eps is not None,
            WIDE=wide,
            BY_HEAD=by_head,
            ANGLES=angles,
            HALVES=halves,
            num_warps=max(1, program_heads * block // (32 * (WIDE_THREAD_ELEMENTS if wide else THREAD_ELEMENTS))),
        )
    return out
