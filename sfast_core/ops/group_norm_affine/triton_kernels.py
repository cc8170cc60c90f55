"""The Triton kernel that makes a scale and a shift of each channel of a GroupNorm's statistics."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows", "groups", "width", "chunk_rows", "chunks"])
def affine_kernel(
    mean_ptr,  # [B, G, chunks] float32
    m2_ptr,  # [B, G, chunks] float32
    weight_ptr,  # [C] or None
    bias_ptr,  # [C] or None
    factor_ptr,  # [B, C] float32, written
    shift_ptr,  # [B, C] float32, written
    rows,  # pixels of an image
    groups,
    width,  # channels of a group
    chunk_rows,  # the last chunk may have fewer
    chunks,  # <= CHUNKS
    eps,
    CHUNKS: tl.constexpr,
    BLOCK_D: tl.constexpr,  # a power of two >= width
):
    """A program has a group of an image: grid (G, B). Chunks are joined as ``group_norm_apply`` joins them."""
    group = tl.program_id(0)
    image = tl.program_id(1).to(tl.int64)
    chunk = tl.arange(0, CHUNKS)
    live = chunk < chunks
    index = (image * groups + group) * chunks + chunk
    chunk_mean = tl.load(mean_ptr + index, mask=live, other=0.0)
    chunk_m2 = tl.load(m2_ptr + index, mask=live, other=0.0)
    count = tl.maximum(tl.minimum(rows - chunk * chunk_rows, chunk_rows), 0).to(tl.float32) * width
    size = rows.to(tl.float32) * width
    mean = tl.sum(chunk_mean * count, 0) / size
    deviation = chunk_mean - mean
    rstd = tl.rsqrt(tl.sum(chunk_m2 + deviation * deviation * count, 0) / size + eps)

    d = tl.arange(0, BLOCK_D)
    mine = d < width
    c = group * width + d
    factor = tl.zeros((BLOCK_D,), tl.float32) + rstd
    if weight_ptr is not None:
        factor *= tl.load(weight_ptr + c, mask=mine, other=0.0).to(tl.float32)
    shift = -mean * factor
    if bias_ptr is not None:
        shift += tl.load(bias_ptr + c, mask=mine, other=0.0).to(tl.float32)
    out = image * groups * width + c
    tl.store(factor_ptr + out, factor, mask=mine)
    tl.store(shift_ptr + out, shift, mask=mine)
