"""The Triton kernel of ``norm_pad_video``."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _place(index, before, size, times, REFLECT: tl.constexpr):
    """Where what is at ``index`` behind the padding comes from."""
    place = index - before
    if REFLECT:
        place = (size * times - 1) - tl.abs((size * times - 1) - tl.abs(place))
    return tl.minimum(tl.maximum(place, 0), size * times - 1) // times


@triton.jit(
    do_not_specialize=[
        "rows", "out_height", "out_width", "lead_rows", "frames", "height", "width", "factor_image", "shift_image",
        "times_t", "times_h", "times_w", "front", "top", "left",
    ]
)  # fmt: skip
def norm_pad_video_kernel(
    x_ptr,  # [B, frames, height, width, C]
    bias_ptr,  # [C] or None
    weight_ptr,  # likewise
    factor_ptr,  # [B or 1, C] or None
    shift_ptr,  # likewise
    out_ptr,  # [B, lead_rows + rows, C], written behind what leads
    rows,  # pixels of the result without what leads
    out_height,
    out_width,
    lead_rows,
    frames,
    height,
    width,
    C,
    factor_image, shift_image,  # elements from one image's row to the next; 0: all have one
    times_t, times_h, times_w,
    front, top, left,
    eps,
    NORM: tl.constexpr,
    SILU: tl.constexpr,
    MOVED: tl.constexpr,  # a pixel comes from elsewhere than its own place
    REFLECT: tl.constexpr,
    BLOCK_C: tl.constexpr,  # a power of two >= C
    ROWS: tl.constexpr,
):  # fmt: skip
    """ROWS pixels a program. Grid: (blocks of pixels, B). Float32 arithmetic. Bytes moved:
    x and the result once each.
    """
    image = tl.program_id(1).to(tl.int64)
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, BLOCK_C)
    inside = c < C
    live = (r < rows)[:, None] & inside[None, :]
    if MOVED:
        column = _place(r % out_width, left, width, times_w, REFLECT)
        row = _place(r // out_width % out_height, top, height, times_h, REFLECT)
        frame = _place(r // (out_width * out_height), front, frames, times_t, False)
        source = (frame * height + row).to(tl.int64) * width + column
    else:
        source = r.to(tl.int64)
    source += image * frames * height * width
    v = tl.load(x_ptr + source[:, None] * C + c[None, :], mask=live, other=0.0).to(tl.float32)
    if bias_ptr is not None:
        v += tl.load(bias_ptr + c, mask=inside, other=0.0).to(tl.float32)[None, :]
    if weight_ptr is not None:
        weight = tl.load(weight_ptr + c, mask=inside, other=0.0).to(tl.float32)
    if factor_ptr is not None:
        factor = tl.load(factor_ptr + image * factor_image + c, mask=inside, other=0.0).to(tl.float32)
    if shift_ptr is not None:
        shift = tl.load(shift_ptr + image * shift_image + c, mask=inside, other=0.0).to(tl.float32)
    if NORM:
        v *= tl.rsqrt(tl.sum(v * v, 1) / C + eps)[:, None]
    if weight_ptr is not None:
        v *= weight[None, :]
    if factor_ptr is not None:
        v *= factor[None, :]
    if shift_ptr is not None:
        v += shift[None, :]
    if SILU:
        v = v / (1.0 + tl.exp(-v))
    target = image * (lead_rows + rows) + lead_rows + r
    tl.store(out_ptr + target[:, None] * C + c[None, :], v.to(out_ptr.dtype.element_ty), mask=live)
