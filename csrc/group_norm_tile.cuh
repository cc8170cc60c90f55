// What one block does for GroupNorm on channels_last data: the moments of a tile, and normalising a tile.
//
// A tile is `rows` positions by `columns` packs of kVec channels. A thread stays in one column and takes every
// `slots`-th row, so its channels, and with them scale and shift, never change, and neighbouring threads read
// neighbouring bytes.
//
// Moments are (count, mean, M2 = sum of squared deviations) and are merged by Chan's formula, never as E[x^2] - mean^2:
// per channel in a thread over batches of kBatch rows, then over threads and the group's channels by one warp in two
// passes. Each sum has a fixed order, so equal inputs give equal bits.
#pragma once

#include "pack.cuh"

namespace sfast {

// rows that a thread has in flight; the next batch loads while this one is worked on
inline constexpr int kBatch = 4;
inline constexpr int kThreads = 512;  // the most threads in a block

// What is normalised: rows of x's channels and, behind them, the tail's, each tensor dense. Without a tail x has all
// channels.
template <typename T>
struct Source {
    const T *x, *tail;
    int x_c, tail_c;

    __device__ __forceinline__ const T* at(int64_t row, int channel) const {
        return (channel < x_c ? x : tail - x_c) + row * stride(channel) + channel;
    }
    // Elements from one row to the next.
    __device__ __forceinline__ int stride(int channel) const { return channel < x_c ? x_c : tail_c; }
};

// c counts tail_c in; without a tail it is null and 0.
template <typename T>
Source<T> source_of(const void* x, const void* tail, int64_t c, int64_t tail_c) {
    return {static_cast<const T*>(x), static_cast<const T*>(tail), int(c - tail_c), int(tail_c)};
}

struct Tile {
    int64_t first_row;
    int first_channel;
    int rows;
    int columns;  // packs in a row of the tile
    int lanes;    // columns served at once, min(columns, kThreads)
    int slots;    // rows served at once

    __device__ int lane() const { return threadIdx.x % lanes; }
    __device__ int slot() const { return threadIdx.x / lanes; }
    __device__ int rows_before(int slot) const { return slot * (rows / slots) + min(slot, rows % slots); }
    __device__ int rows_of(int slot) const { return slot < slots ? rows / slots + (slot < rows % slots ? 1 : 0) : 0; }
};

struct Moments {
    float count, mean, m2;
};

__device__ __forceinline__ Moments merge(const Moments& a, const Moments& b) {
    if (b.count == 0.f) return a;
    const float count = a.count + b.count;
    const float delta = b.mean - a.mean;
    const float weight = b.count / count;
    return {count, a.mean + delta * weight, a.m2 + b.m2 + delta * delta * (a.count * weight)};
}

__device__ __forceinline__ float inverse_deviation(float m2, float count, float eps) {
    return rsqrtf(m2 / count + eps);
}

template <typename T, int kVec>
struct Batch {
    Pack<T, kVec> packs[kBatch];

    // Up to `left` rows from `pointer` on, `step` elements apart; the rest are zeros.
    __device__ __forceinline__ void load(const T* pointer, int step, int left) {
#pragma unroll
        for (int row = 0; row < kBatch; ++row) {
            packs[row] = row < left ? load_pack<T, kVec>(pointer + row * step) : Pack<T, kVec>{};
        }
    }
};

// Moments of kVec channels, all with the same count.
template <int kVec>
struct ColumnMoments {
    float count = 0.f;
    float mean[kVec] = {};
    float m2[kVec] = {};

    // Takes in the first `valid` rows of a batch (all of them where kFull).
    template <typename T, bool kFull>
    __device__ __forceinline__ void absorb(const Batch<T, kVec>& batch, int valid) {
        const float batch_count = kFull ? float(kBatch) : float(valid);
        const float inverse = kFull ? 1.f / kBatch : 1.f / batch_count;
        const float weight = batch_count / (count + batch_count);
        const float cross = count * weight;
        float rows[kBatch][kVec];
#pragma unroll
        for (int row = 0; row < kBatch; ++row) unpack<T, kVec>(batch.packs[row], rows[row]);
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
            float sum = 0.f;
#pragma unroll
            for (int row = 0; row < kBatch; ++row) sum += rows[row][i];  // rows that aren't there are zeros
            const float batch_mean = sum * inverse;
            float batch_m2 = 0.f;
#pragma unroll
            for (int row = 0; row < kBatch; ++row) {
                const float deviation = kFull || row < valid ? rows[row][i] - batch_mean : 0.f;
                batch_m2 += deviation * deviation;
            }
            const float delta = batch_mean - mean[i];
            mean[i] += delta * weight;
            m2[i] += batch_m2 + delta * delta * cross;
        }
        count += batch_count;
    }
};

// Writes each slot's per-channel mean and M2 to means and m2s, both [slots, columns * kVec] in shared memory. `add` is
// what each channel is shifted by before the norm, from `add_offset` on the tile's; a shift moves a channel's mean and
// leaves its M2 alone.
template <typename T, int kVec>
__device__ __forceinline__ void tile_moments(
    const Source<T>& source, const Tile& tile, const Vector& add, int64_t add_offset, float* means, float* m2s) {
    const int slot = tile.slot();
    if (slot >= tile.slots) return;
#pragma unroll 1
    for (int column = tile.lane(); column < tile.columns; column += tile.lanes) {
        const int channel = tile.first_channel + column * kVec;
        const int step = tile.slots * source.stride(channel);
        const T* pointer = source.at(tile.first_row + slot, channel);
        int left = tile.rows_of(slot);
        float shift[kVec];
        add.load(add_offset + column * kVec, 0.f, shift);  // once, and on its way while the rows are
        ColumnMoments<kVec> moments;
        Batch<T, kVec> batch, next;
        batch.load(pointer, step, left);
#pragma unroll 1
        while (left > 0) {
            pointer += kBatch * step;
            next.load(pointer, step, left - kBatch);
            if (left >= kBatch) {
                moments.template absorb<T, true>(batch, kBatch);
            } else {
                moments.template absorb<T, false>(batch, left);
            }
            batch = next;
            left -= kBatch;
        }
        const int offset = (slot * tile.columns + column) * kVec;
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
            means[offset + i] = moments.mean[i] + shift[i];
            m2s[offset + i] = moments.m2[i];
        }
    }
}

// One warp: the moments of a group's channels over the slots [begin, end).
__device__ __forceinline__ Moments slots_moments(const float* means, const float* m2s, const Tile& tile, int channels,
    int first_channel, int group_size, int begin, int end) {
    const int items = (end - begin) * group_size;
    const float count = float(tile.rows_before(end) - tile.rows_before(begin)) * group_size;
    if (count == 0.f) return {0.f, 0.f, 0.f};
    const int lane = threadIdx.x % 32;
    float sum = 0.f;
#pragma unroll 2
    for (int item = lane; item < items; item += 32) {
        const int slot = begin + item / group_size;
        const int channel = first_channel + item % group_size;
        sum += tile.rows_of(slot) * means[slot * channels + channel];
    }
    const float mean = warp_sum(sum) / count;
    float m2 = 0.f;
#pragma unroll 2
    for (int item = lane; item < items; item += 32) {
        const int slot = begin + item / group_size;
        const int channel = first_channel + item % group_size;
        const int index = slot * channels + channel;
        const float delta = means[index] - mean;
        m2 += m2s[index] + tile.rows_of(slot) * (delta * delta);
    }
    return {count, mean, warp_sum(m2)};
}

// Shares the groups of a tile out to the warps, several warps to a group where there are more warps than groups. After
// the __syncthreads that the caller owes, parts[group * part_count() + i] for all i merge to the group's moments.
__device__ __forceinline__ int part_count(int groups) { return max(1, int(blockDim.x / 32) / groups); }

__device__ __forceinline__ void group_parts(
    const float* means, const float* m2s, const Tile& tile, int channels, int groups, Moments* parts) {
    const int warps = blockDim.x / 32;
    const int count = part_count(groups);
    const int group_size = channels / groups;
#pragma unroll 1
    for (int task = threadIdx.x / 32; task < groups * count; task += warps) {
        const int group = task / count;
        const int part = task % count;
        const int begin = part * tile.slots / count, end = (part + 1) * tile.slots / count;
        const Moments moments = slots_moments(means, m2s, tile, channels, group * group_size, group_size, begin, end);
        if (threadIdx.x % 32 == 0) parts[task] = moments;
    }
}

__device__ __forceinline__ Moments merge_parts(const Moments* parts, int group, int count) {
    Moments moments = parts[group * count];
#pragma unroll 1
    for (int part = 1; part < count; ++part) moments = merge(moments, parts[group * count + part]);
    return moments;
}

// The fast forms are good to 2 ulp of float32 where it counts, and take half the instructions and fewer registers.
__device__ __forceinline__ float silu(float value) {
    float power, inverse;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(value * -1.4426950408889634f));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1.f + power));
    return value * inverse;
}

// What turns the moments into y: everything about a channel except its group's mean and 1 / deviation.
struct Affine {
    Vector weight, bias, add;
    int64_t channel;     // the tile's first channel
    int64_t add_offset;  // the same channel in `add`, for this sample
};

// y = act(x * scale + shift) with scale = inverse_deviation * weight and shift = (add - mean) * scale + bias: the whole
// block writes both, [channels] in shared memory, from the moments of the tile's groups. The caller owes a
// __syncthreads.
__device__ __forceinline__ void channel_scales(const float* means, const float* inverse_deviations, int channels,
    int group_size, const Affine& affine, float* scales, float* shifts) {
#pragma unroll 1
    for (int channel = threadIdx.x; channel < channels; channel += blockDim.x) {
        const int group = channel / group_size;
        const float scale = inverse_deviations[group] * affine.weight.at(affine.channel + channel, 1.f);
        const float offset = affine.add.at(affine.add_offset + channel, 0.f) - means[group];
        scales[channel] = scale;
        shifts[channel] = offset * scale + affine.bias.at(affine.channel + channel, 0.f);
    }
}

// The first of a thread's batches that tile_apply normalises.
template <typename T, int kVec>
__device__ __forceinline__ Batch<T, kVec> first_batch(const Source<T>& source, const Tile& tile) {
    const int channel = tile.first_channel + tile.lane() * kVec;
    Batch<T, kVec> batch;
    batch.load(source.at(tile.first_row + tile.slot(), channel), tile.slots * source.stride(channel),
        tile.rows_of(tile.slot()));
    return batch;
}

// Normalises a tile into y, whose rows have c elements. `batch` is first_batch's: its loads overlap with what made the
// statistics.
template <typename T, int kVec>
__device__ __forceinline__ void tile_apply(const Source<T>& source, T* y, int c, const Tile& tile, Batch<T, kVec> batch,
    const float* scales, const float* shifts, bool use_silu) {
    const int slot = tile.slot();
    if (slot >= tile.slots) return;
    const int out_step = tile.slots * c;
#pragma unroll 1
    for (int column = tile.lane(); column < tile.columns; column += tile.lanes) {
        const int channel = tile.first_channel + column * kVec;
        const int step = tile.slots * source.stride(channel);
        const T* pointer = source.at(tile.first_row + slot, channel);
        T* out = y + (tile.first_row + slot) * c + channel;
        int left = tile.rows_of(slot);
        if (column >= tile.lanes) batch.load(pointer, step, left);
        float scale[kVec], shift[kVec];
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
            scale[i] = scales[column * kVec + i];
            shift[i] = shifts[column * kVec + i];
        }
#pragma unroll 1
        while (left > 0) {
#pragma unroll
            for (int row = 0; row < kBatch; ++row) {
                if (row >= left) break;
                float values[kVec];
                unpack<T, kVec>(batch.packs[row], values);
#pragma unroll
                for (int i = 0; i < kVec; ++i) {
                    values[i] = fmaf(values[i], scale[i], shift[i]);
                    if (use_silu) values[i] = silu(values[i]);
                }
                store_pack<T, kVec>(out + int64_t(row) * out_step, pack<T, kVec>(values));
            }
            pointer += int64_t(kBatch) * step;
            out += int64_t(kBatch) * out_step;
            left -= kBatch;
            // Not loaded ahead as in tile_moments: scale and shift leave no registers for it at two blocks a
            // multiprocessor.
            batch.load(pointer, step, left);
        }
    }
}

}  // namespace sfast
