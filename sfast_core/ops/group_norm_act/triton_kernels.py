"""GroupNorm of channels_last images in Triton.

Two ways: the first is :mod:`.triton_two_impl`, the second :mod:`.triton_impl`:

``group_statistics`` then ``group_norm_apply``: the image's rows (a row: the C channels of one pixel) are cut into
chunks. The first kernel reduces each chunk to a mean and an M2 (sum of squared deviations) per group, the second
combines a group's chunks and normalises. x is read twice, out written once.
``group_norm_small``: one program holds one group of one image in registers. x is read once, out written once.

No sum of squares is ever subtracted from a square of sums: within a chunk and between chunks, counts, means and M2 are
combined as in Chan, Golub and LeVeque (1979), so a mean far from zero costs no digits. The order of all sums is fixed:
replays are bit-equal.

The input may come as two tensors, the ``CT`` channels of ``tail`` behind the ``CX`` of ``x``: a concatenation before
the norm is read from where its parts lie. Without one ``tail_ptr`` is any pointer and CT is 0.

``add_rows`` and ``silu`` are numbers at run time, not constants: a compilation costs half a second, reading them
nothing. Without an addend ``add_ptr`` is any pointer, and each load of it is masked out.
"""

import triton
import triton.language as tl


@triton.jit
def _silu(v):
    return v / (1.0 + tl.exp(-v))


@triton.jit
def _pixels(x_ptr, tail_ptr, CX, CT, row, channel):
    """The channels of the pixels from ``row`` on: a row of pointers, and the elements to the next pixel's."""
    in_tail = channel >= CX
    pointers = tl.where(in_tail, tail_ptr + row * CT + (channel - CX), x_ptr + row * CX + channel)
    return pointers[None, :], tl.where(in_tail, CT, CX)[None, :]


@triton.jit(do_not_specialize=["add_rows", "add_stride", "HW", "G", "D", "block_groups", "chunk_rows", "chunks"])
def group_statistics(
    x_ptr,  # [B, HW, CX]
    tail_ptr,  # [B, HW, CT]
    add_ptr,  # [add_rows, C]
    mean_ptr,  # [B, G, chunks] float32, written
    m2_ptr,  # [B, G, chunks] float32, written
    add_rows,  # 0: nothing is added
    add_stride,  # elements between two rows of add; 0 where it has one row
    HW,
    CX,
    CT,
    G,
    D,  # channels per group
    block_groups,  # groups per program; block_groups * D <= BLOCK_C
    chunk_rows,
    chunks,
    BLOCK_C: tl.constexpr,
    SLOTS: tl.constexpr,  # a power of two >= block_groups
    ROWS: tl.constexpr,  # rows per step of the loop
    LANES: tl.constexpr,  # rows that are accumulated apart; the ROWS // LANES rows of a lane lie in one thread
    VEC: tl.constexpr,  # divides block_groups * D, CX and CT
):
    """Mean and M2 of ``x + add`` over one chunk of rows, for ``block_groups`` whole groups.

    Grid: (group blocks, chunks, B).
    """
    C = CX + CT
    STEPS: tl.constexpr = ROWS // LANES
    image = tl.program_id(2).to(tl.int64)
    chunk = tl.program_id(1)
    first_group = tl.program_id(0) * block_groups
    first_channel = tl.multiple_of(first_group * D, VEC)
    width = tl.multiple_of(tl.minimum(block_groups * D, C - first_channel), VEC)
    first_row = chunk * chunk_rows
    rows = tl.minimum(chunk_rows, HW - first_row)

    c = tl.arange(0, BLOCK_C)
    r = tl.arange(0, ROWS)
    step = tl.arange(0, STEPS)[:, None, None]
    lane = tl.arange(0, LANES)
    pixel_ptr, pixel = _pixels(x_ptr, tail_ptr, CX, CT, image * HW + first_row, first_channel + c)
    tile_ptr = pixel_ptr + r[:, None] * pixel

    addend = tl.load(
        add_ptr + image * add_stride + first_channel + c, mask=c < tl.where(add_rows > 0, width, 0), other=0.0
    ).to(tl.float32)

    count = tl.zeros((LANES, 1), tl.float32)
    mean = tl.zeros((LANES, BLOCK_C), tl.float32)
    m2 = tl.zeros((LANES, BLOCK_C), tl.float32)
    for start in range(0, rows, ROWS):
        left = rows - start
        tile = tl.load(tile_ptr, mask=(r < left)[:, None] & (c < width)[None, :], other=0.0).to(tl.float32)
        tile = tl.reshape(tile, (STEPS, LANES, BLOCK_C))
        live = step * LANES + lane[None, :, None] < left
        tile_count = tl.minimum(tl.maximum((left - lane + LANES - 1) // LANES, 0), STEPS).to(tl.float32)[:, None]
        tile_mean = tl.sum(tile, 0) / tl.maximum(tile_count, 1.0)
        deviation = tl.where(live, tile - tile_mean[None, :, :], 0.0)
        total = count + tile_count
        share = tile_count / tl.maximum(total, 1.0)
        delta = tile_mean - mean
        mean += delta * share
        m2 += tl.sum(deviation * deviation, 0) + delta * delta * (count * share)
        count = total
        tile_ptr += ROWS * pixel

    # Lanes to channels.
    rows_f = rows.to(tl.float32)
    channel_mean = tl.sum(mean * count, 0) / rows_f
    deviation = mean - channel_mean[None, :]
    channel_m2 = tl.sum(m2 + deviation * deviation * count, 0)
    channel_mean += addend

    # Channels to groups.
    slot = tl.arange(0, SLOTS)
    member = ((c // D)[None, :] == slot[:, None]) & (c < width)[None, :]
    group_mean = tl.sum(tl.where(member, channel_mean[None, :], 0.0), 1) / D
    deviation = tl.where(member, channel_mean[None, :] - group_mean[:, None], 0.0)
    group_m2 = tl.sum(tl.where(member, channel_m2[None, :], 0.0) + deviation * deviation * rows_f, 1)
    index = (image * G + first_group + slot) * chunks + chunk
    tl.store(mean_ptr + index, group_mean, mask=slot * D < width)
    tl.store(m2_ptr + index, group_m2, mask=slot * D < width)


@triton.jit(do_not_specialize=["add_rows", "add_stride", "HW", "G", "D", "chunk_rows", "chunks", "tiles", "silu"])
def group_norm_apply(
    x_ptr,  # [B, HW, CX]
    tail_ptr,  # [B, HW, CT]
    weight_ptr,  # [C] or None
    bias_ptr,  # [C] or None
    add_ptr,  # [add_rows, C]
    mean_ptr,  # [B, G, chunks] float32
    m2_ptr,  # [B, G, chunks] float32
    out_ptr,  # [B, HW, C], written
    add_rows,
    add_stride,
    HW,
    CX,
    CT,
    G,
    D,
    chunk_rows,
    chunks,  # <= CHUNKS
    tiles,  # tiles of ROWS rows per program
    silu,  # 1: SiLU behind it
    eps,
    BLOCK_C: tl.constexpr,
    SLOTS: tl.constexpr,  # at least as many as the groups that BLOCK_C channels can touch
    ROWS: tl.constexpr,
    CHUNKS: tl.constexpr,
):
    """``(x + add - mean) * rstd * weight + bias``, and SiLU of it, for ``tiles * ROWS`` rows of BLOCK_C channels.

    Grid: (row blocks * channel blocks, B), neighbours beside each other in memory.
    """
    C = CX + CT
    image = tl.program_id(1).to(tl.int64)
    channel_blocks = tl.cdiv(C, BLOCK_C)
    first_row = tl.program_id(0) // channel_blocks * (tiles * ROWS)
    first_channel = tl.program_id(0) % channel_blocks * BLOCK_C
    c = first_channel + tl.arange(0, BLOCK_C)
    r = tl.arange(0, ROWS)
    base = (image * HW + first_row) * C
    offsets = r[:, None] * C + c[None, :]
    pixel_ptr, pixel = _pixels(x_ptr, tail_ptr, CX, CT, image * HW + first_row, c)
    tile_ptr = pixel_ptr + r[:, None] * pixel
    left = tl.minimum(HW - first_row, tiles * ROWS)

    # Ask for all at once: a load behind a barrier would wait for what is before it.
    tile = tl.load(tile_ptr, mask=(r < left)[:, None] & (c < C)[None, :], other=0.0)

    first_group = first_channel // D
    last_group = (tl.minimum(first_channel + BLOCK_C, C) - 1) // D
    group = first_group + tl.arange(0, SLOTS)
    chunk = tl.arange(0, CHUNKS)
    index = (image * G + group)[:, None] * chunks + chunk[None, :]
    live = (group <= last_group)[:, None] & (chunk < chunks)[None, :]
    chunk_mean = tl.load(mean_ptr + index, mask=live, other=0.0)
    chunk_m2 = tl.load(m2_ptr + index, mask=live, other=0.0)
    if weight_ptr is not None:
        weight = tl.load(weight_ptr + c, mask=c < C, other=0.0).to(tl.float32)
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + c, mask=c < C, other=0.0).to(tl.float32)
    addend = tl.load(add_ptr + image * add_stride + c, mask=c < tl.where(add_rows > 0, C, 0), other=0.0).to(tl.float32)

    size = HW.to(tl.float32) * D
    count = tl.maximum(tl.minimum(HW - chunk * chunk_rows, chunk_rows), 0).to(tl.float32)[None, :] * D
    mean = tl.sum(chunk_mean * count, 1) / size
    deviation = chunk_mean - mean[:, None]
    rstd = tl.rsqrt(tl.sum(chunk_m2 + deviation * deviation * count, 1) / size + eps)

    # Groups to channels, and all that is affine into one scale and one shift.
    member = (c // D)[None, :] == group[:, None]
    shift = -tl.sum(tl.where(member, mean[:, None], 0.0), 0)
    scale = tl.sum(tl.where(member, rstd[:, None], 0.0), 0)
    shift += addend
    if weight_ptr is not None:
        scale *= weight
    shift *= scale
    if bias_ptr is not None:
        shift += bias

    for _ in range(tiles):
        tile_ptr += ROWS * pixel
        following = tl.load(tile_ptr, mask=(r + ROWS < left)[:, None] & (c < C)[None, :], other=0.0)
        v = tile.to(tl.float32) * scale[None, :] + shift[None, :]
        if silu:
            v = _silu(v)
        tl.store(out_ptr + base + offsets, v.to(out_ptr.dtype.element_ty), mask=(r < left)[:, None] & (c < C)[None, :])
        tile = following
        base += ROWS * C
        left -= ROWS


@triton.jit(do_not_specialize=["add_rows", "add_stride", "HW", "D", "silu"])
def group_norm_small(
    x_ptr,  # [B, HW, CX]
    tail_ptr,  # [B, HW, CT]
    weight_ptr,  # [C] or None
    bias_ptr,  # [C] or None
    add_ptr,  # [add_rows, C]
    out_ptr,  # [B, HW, C], written
    add_rows,
    add_stride,
    HW,  # <= ROWS
    CX,
    CT,
    D,  # channels per group
    silu,
    eps,
    BLOCK_D: tl.constexpr,  # a power of two >= D
    ROWS: tl.constexpr,
    VEC: tl.constexpr,  # divides D, CX and CT
):
    """The whole of one group of one image. Grid: (G, B)."""
    image = tl.program_id(1).to(tl.int64)
    # D, as an operation's result: a hint on an argument is lost, and loads are 2 bytes wide
    width = tl.multiple_of(tl.minimum(D, BLOCK_D), VEC)
    first_channel = tl.multiple_of(tl.program_id(0) * D, VEC)
    c = tl.arange(0, BLOCK_D)
    r = tl.arange(0, ROWS)
    C = CX + CT
    offsets = image * HW * C + first_channel + r[:, None] * C + c[None, :]
    pixel_ptr, pixel = _pixels(x_ptr, tail_ptr, CX, CT, image * HW, first_channel + c)
    live = (r < HW)[:, None] & (c < width)[None, :]
    v = tl.load(pixel_ptr + r[:, None] * pixel, mask=live, other=0.0).to(tl.float32)
    if weight_ptr is not None:
        weight = tl.load(weight_ptr + first_channel + c, mask=c < width, other=0.0).to(tl.float32)
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + first_channel + c, mask=c < width, other=0.0).to(tl.float32)
    addend = tl.load(
        add_ptr + image * add_stride + first_channel + c, mask=c < tl.where(add_rows > 0, width, 0), other=0.0
    ).to(tl.float32)
    v = tl.where(live, v + addend[None, :], 0.0)

    size = HW.to(tl.float32) * D
    mean = tl.sum(tl.sum(v, 1), 0) / size
    v = tl.where(live, v - mean, 0.0)
    rstd = tl.rsqrt(tl.sum(tl.sum(v * v, 1), 0) / size + eps)
    v *= rstd
    if weight_ptr is not None:
        v *= weight[None, :]
    if bias_ptr is not None:
        v += bias[None, :]
    if silu:
        v = _silu(v)
    tl.store(out_ptr + offsets, v.to(out_ptr.dtype.element_ty), mask=live)
