"""RMSNorm and rotary embedding in one Triton kernel: reads queries or keys where the projection left them, writes them joined."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from ..constraints import why_no_triton, why_not_dtypes
from ..triton_launch import launcher

if TYPE_CHECKING:
    from ...target import Target

# Of one token, and of those a thread's. H100, bf16, us, [1, 4608, 24, 128] and two of [2, 4096, 24, 64] and 333 joined: 28.1 and 27.4; with 8 a
# thread 39.6 and 27.9, with 2048 and 16 35.8 and 44.5, with 4096 and 32 27.0 and 27.3, but 58.5 where 512 tokens and 4096 are joined (31.2).
PROGRAM_ELEMENTS = 1024
THREAD_ELEMENTS = 16
HEAD_SIZES = (16, 32, 64, 128, 256)


@triton.jit(do_not_specialize=["first", "total"])
def norm_rope_kernel(
    x_ptr,  # [B, L, H, D], D beside one another
    weight_ptr,  # [D] or None
    rotations_ptr,  # [B or 1, total, D / 2, 2, 2] or None
    out_ptr,  # [B, total, H, D], written from token ``first`` on
    first,
    total,
    H,
    x_image,  # strides
    x_token,
    x_head,
    rotations_image,
    eps,
    D: tl.constexpr,
    HEADS: tl.constexpr,
    NORM: tl.constexpr,
):
    """HEADS heads of one token a program. Float32 arithmetic.

    Bytes moved: x and out once each; a token's matrices are in L2 for its other heads.
    """
    token, image = tl.program_id(0), tl.program_id(2).to(tl.int64)
    h = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    d = tl.arange(0, D)
    x = tl.load(x_ptr + image * x_image + token.to(tl.int64) * x_token + h * x_head + d[None, :], mask=h < H, other=0.0).to(tl.float32)
    if rotations_ptr is not None:  # loaded before the norm: behind its reduction the loads would wait for it
        matrices = rotations_ptr + image * rotations_image + (first + token).to(tl.int64) * (2 * D) + 4 * tl.arange(0, D // 2)
        m00, m01 = tl.load(matrices)[None, :], tl.load(matrices + 1)[None, :]
        m10, m11 = tl.load(matrices + 2)[None, :], tl.load(matrices + 3)[None, :]
    if NORM:
        x *= tl.rsqrt(tl.sum(x * x, 1) / D + eps)[:, None]
        if weight_ptr is not None:
            x *= tl.load(weight_ptr + d).to(tl.float32)[None, :]
    if rotations_ptr is not None:
        even, odd = tl.split(tl.reshape(x, [HEADS, D // 2, 2]))
        x = tl.reshape(tl.join(even * m00 + odd * m01, even * m10 + odd * m11), [HEADS, D])
    row = (image * total + first + token) * H + h
    tl.store(out_ptr + row * D + d[None, :], x.to(out_ptr.dtype.element_ty), mask=h < H)


def why_not(
    target: Target,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    rotations: torch.Tensor | None,
    eps: float | None,
    behind: torch.Tensor | None = None,
    behind_weight: torch.Tensor | None = None,
) -> str | None:
    """The reason why the kernel can't compute this, or None."""
    if reason := why_no_triton(target) or why_not_dtypes(x=x):
        return reason
    if x.dim() != 4:
        return f"x has {x.dim()} dimensions, must have 4"
    images, tokens, heads, size = x.shape
    if size not in HEAD_SIZES:
        return f"heads of {size} are not one of {HEAD_SIZES}"
    if behind is not None:
        if behind.dim() != 4 or (behind.shape[0], *behind.shape[2:]) != (images, heads, size) or behind.dtype != x.dtype:
            return f"behind is {list(behind.shape)} {behind.dtype}, x is {list(x.shape)} {x.dtype}"
        tokens += behind.shape[1]
    if rotations is not None and rotations.dtype != torch.float32:
        return f"rotations are {rotations.dtype}, must be torch.float32"
    if rotations is not None and tuple(rotations.shape) not in {(count, tokens, size // 2, 2, 2) for count in (1, images)}:
        return f"rotations are {list(rotations.shape)}, must be {[images, tokens, size // 2, 2, 2]}"
    for name, tensor in (("weight", weight), ("behind_weight", behind_weight)):
        if tensor is not None and (tuple(tensor.shape) != (size,) or tensor.dtype != x.dtype or eps is None):
            return f"{name} is {list(tensor.shape)} {tensor.dtype}, must be {[size]} {x.dtype}, and eps {eps} a number"
    return None


def launch(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    rotations: torch.Tensor | None,
    eps: float | None,
    behind: torch.Tensor | None = None,
    behind_weight: torch.Tensor | None = None,
) -> torch.Tensor:
    """As :func:`.reference.norm_rope`."""
    images, length, heads, size = x.shape
    total = length if behind is None else length + behind.shape[1]
    out = torch.empty((images, total, heads, size), dtype=x.dtype, device=x.device)
    rotations = None if rotations is None else rotations.contiguous()
    program_heads = min(triton.next_power_of_2(heads), PROGRAM_ELEMENTS // size)
    streams = [(x, weight, 0)] if behind is None else [(x, weight, 0), (behind, behind_weight, length)]
    for tokens, own_weight, first in streams:
        if tokens.numel() == 0:
            continue
        rows = tokens if tokens.stride(-1) == 1 else tokens.contiguous()
        with torch.cuda.device_of(x):
            launcher(norm_rope_kernel, (tokens.shape[1], -(-heads // program_heads), images))(
                rows,
                None if own_weight is None else own_weight.contiguous(),
                rotations,
                out,
                first,
                total,
                heads,
                *rows.stride()[:3],
                0 if rotations is None or rotations.shape[0] == 1 else rotations.stride(0),
                0.0 if eps is None else eps,
                D=size,
                HEADS=program_heads,
                NORM=eps is not None,
                num_warps=max(1, program_heads * size // (32 * THREAD_ELEMENTS)),
            )
    return out
