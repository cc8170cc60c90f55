"""The Triton kernel of ``norm_rope``."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["first", "total", "images"])
def norm_rope_kernel(
    x_ptr,  # [B, L, H, D], D beside one another
    weight_ptr,  # [D], or of WIDE [H * D], or None
    rotations_ptr,  # [B or 1, total, 1 or H, D / 2, 2, 2], of ANGLES [..., D / 2, 2], or None
    out_ptr,  # [B, total, H, D], written from token ``first`` on
    first,
    total,
    images,
    H,
    x_image,  # strides
    x_token,
    x_head,
    rotations_image,
    eps,
    offset,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,  # a power of two >= D; D itself of HALVES
    HEADS: tl.constexpr,
    NORM: tl.constexpr,
    WIDE: tl.constexpr,  # the norm is over all H heads; HEADS >= H
    BY_HEAD: tl.constexpr,  # each head has its own rotations
    ANGLES: tl.constexpr,  # these are cosines and sines
    HALVES: tl.constexpr,  # pairs are of an element of the first half and one of the second
):
    """HEADS heads of one token a program. Float32 arithmetic.

    Bytes moved: x and out once each; a token's rotations are in L2 for its other heads and other images, where these
    have the same.
    """
    token, image = tl.program_id(0) // images, (tl.program_id(0) % images).to(tl.int64)
    h = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    d = tl.arange(0, BLOCK_D)[None, :]
    live = h < H
    if BLOCK_D > D:
        live = live & (d < D)
    x = tl.load(x_ptr + image * x_image + token.to(tl.int64) * x_token + h * x_head + d, mask=live, other=0.0).to(
        tl.float32
    )
    if rotations_ptr is not None:  # loaded before the norm: behind its reduction the loads would wait for it
        NUMBERS: tl.constexpr = 1 if ANGLES else 2  # of an element: beside one another, so that each load has 16 bytes
        n = tl.arange(0, NUMBERS * BLOCK_D)[None, :]
        row = (first + token).to(tl.int64)
        if BY_HEAD:
            row = row * H + h
            there = (h < H) & (n < NUMBERS * D)
        else:
            there = n < NUMBERS * D if BLOCK_D > D else None
        numbers = tl.load(rotations_ptr + image * rotations_image + row * (NUMBERS * D) + n, mask=there).to(tl.float32)
        ROWS: tl.constexpr = HEADS if BY_HEAD else 1
        if ANGLES:
            m00, m10 = tl.split(tl.reshape(numbers, [ROWS, BLOCK_D // 2, 2]))
            m01, m11 = -m10, m00
        else:
            left, right = tl.split(tl.reshape(numbers, [ROWS, BLOCK_D // 2, 2, 2]))
            m00, m10 = tl.split(left)
            m01, m11 = tl.split(right)
    if NORM:
        if WIDE:
            x *= tl.rsqrt(tl.sum(tl.sum(x * x, 1), 0) / (H * D) + eps)
            x *= tl.load(weight_ptr + h * D + d, mask=live, other=0.0).to(tl.float32) + offset
        else:
            x *= tl.rsqrt(tl.sum(x * x, 1) / D + eps)[:, None]
            if weight_ptr is not None:
                x *= tl.load(weight_ptr + d, mask=d < D if BLOCK_D > D else None).to(tl.float32) + offset
    if rotations_ptr is not None:
        if HALVES:
            one, other = tl.split(tl.permute(tl.reshape(x, [HEADS, 2, D // 2]), [0, 2, 1]))
            turned = tl.join(one * m00 + other * m01, one * m10 + other * m11)
            x = tl.reshape(tl.permute(turned, [0, 2, 1]), [HEADS, D])
        else:
            one, other = tl.split(tl.reshape(x, [HEADS, BLOCK_D // 2, 2]))
            x = tl.reshape(tl.join(one * m00 + other * m01, one * m10 + other * m11), [HEADS, BLOCK_D])
    out_row = (image * total + first + token) * H + h
    tl.store(out_ptr + out_row * D + d, x.to(out_ptr.dtype.element_ty), mask=live)
