// What both kernels of conv2d.cu have in common: a convolution as one product of matrices on compute capability 9.0a,
// with all that follows it.
//
// The rows of the product are the pixels of the result, one image behind the other, the columns its channels; the depth
// is taps x channels of the input, 64 channels of one tap at a time. The kernels differ in how a tile's pixels come
// into shared memory: conv2d_gather.cuh and conv2d_window.cuh.
//
// A block is three warpgroups (three_warpgroups.cuh), two of which compute half of a tile's rows each. What is added to
// the products (bias, channel_add, residual) is where their sums begin, so it costs no pass and is not rounded; the
// result is written once. The 1x1 convolution of another image, a residual block's shortcut, is further depth: its steps
// stand behind the others.
//
// An image that is doubled first, by repeating its pixels, is not made: rows 2y of the result take rows y - 1 and y of
// the image, rows 2y + 1 rows y and y + 1, columns likewise. So each of the four phases of the result is a convolution
// of 2 x 2 taps with a weight of its own, and the rows of the product are the pixels of the image, four times over.
//
// A multiprocessor takes 27 bytes a clock from L2 when all do; alone, a block of 128 x 160 would want 58 at full speed.
// So blocks of a cluster that have the same channels bring half of the weight each, for both, and those that have the
// same pixels half of the pixels. Where there are fewer tiles than multiprocessors, blocks of a cluster share a tile's
// depth: each warp's sums go to one of them, which adds them in a fixed order.
//
// No atomics and no order that depends on time: equal inputs give equal bits.
#pragma once

#include "conv2d_products.cuh"
#include "tensor_map.cuh"
#include "three_warpgroups.cuh"

#if CUDART_VERSION >= 12000

namespace sfast {
namespace {

constexpr int kDepth = 64;          // of a step: 128 bytes
constexpr int kResidualRows = 128;  // of a box
// to load into
constexpr int kBufferBytes = kSharedBytes - hopper::kSwizzleAtomBytes - kWarps * kStores * kStoreBytes;

template <int kTileRows, int kTileColumns>
struct Tile {
    static constexpr int kRows = kTileRows, kColumns = kTileColumns;
    static constexpr int kGroupRows = kRows / kComputing;
    static constexpr int kSums = kColumns / 2;  // of a thread, for each 64 rows
    static constexpr int kPixelBytes = kRows * kDepth * 2;
    static constexpr int kWeightBytes = kColumns * kDepth * 2;
    static constexpr int kResidualBoxes = (kColumns + kDepth - 1) / kDepth * (kRows / kResidualRows);
};

struct Conv2dArguments {
    CUtensorMap x, weight, residual, out;
    CUtensorMap shortcut, tail, shortcut_weight;  // the channels of `tail` stand behind those of `shortcut`
    const void *bias, *channel_add;               // null where there is none
    int64_t channel_add_stride;
    bool has_residual;
    int pixels, image_pixels, out_height, out_width, channels;  // of the result
    int stride_h, stride_w, pad_h, pad_w;
    int tap_columns;                   // of the weight
    int depth_blocks;                  // of 64 channels, to a tap
    int parts;                         // of the depth, that can be shared out: steps, or blocks with all their taps
    int shortcut_blocks, tail_blocks;  // of 64 channels
    // blocks of a cluster: with the same channels, with the same pixels, with parts of the depth
    int sharing_rows, sharing_columns, splits;
    int row_groups, column_groups;  // of tiles; one of each is a cluster's
    // 4 where the image is doubled, otherwise 1; how many of row_groups are one phase's
    int phases, phase_groups;
    void* doubled;  // the result, where the image is doubled
    int act;
    int window_bytes, weight_stages;  // of conv2d_window.cuh
};

#ifdef SFAST_HOPPER

// Where one is in a ring of buffers, and the parity of the phase of their barriers. A buffer has two: full, when TMA
// has brought all of it; empty, when each warp that computes with it, of each block that it is brought to, is done.
struct Ring {
    uint32_t stage = 0, parity = 0;

    __device__ __forceinline__ void advance(int stages) {
        if (++stage == stages) {
            stage = 0;
            parity ^= 1;
        }
    }

    // For the thread that loads: the barrier of the buffer, once that is empty. The first time round all are: a new
    // barrier answers at once for the phase before its first.
    __device__ __forceinline__ uint32_t expect(uint32_t full, uint32_t empty, uint32_t bytes) const {
        hopper::barrier_wait(empty + 8 * stage, parity ^ 1);
        hopper::barrier_arrive_expecting(full + 8 * stage, bytes);
        return full + 8 * stage;
    }

    // For those that compute.
    __device__ __forceinline__ void wait(uint32_t full) const { hopper::barrier_wait(full + 8 * stage, parity); }
};

// Which of a cluster's blocks this is, and which of `clusters` the cluster.
struct Member {
    const Conv2dArguments& arguments;
    int row, column, split;
    int cluster, clusters;

    __device__ __forceinline__ explicit Member(const Conv2dArguments& all) : arguments(all) {
        const int rank = int(hopper::cluster_rank());
        row = rank % arguments.sharing_rows;
        column = rank / arguments.sharing_rows % arguments.sharing_columns;
        split = rank / arguments.sharing_rows / arguments.sharing_columns;
        const int blocks = arguments.sharing_rows * arguments.sharing_columns * arguments.splits;
        cluster = blockIdx.x / blocks;
        clusters = gridDim.x / blocks;
    }
    __device__ __forceinline__ int rank_of(int of_row, int of_column, int of_split) const {
        return (of_split * arguments.sharing_columns + of_column) * arguments.sharing_rows + of_row;
    }
    __device__ __forceinline__ uint16_t own() const { return uint16_t(1 << rank_of(row, column, split)); }
    __device__ __forceinline__ uint16_t same_pixels() const {
        return uint16_t(1 << rank_of(row, 0, split) | 1 << rank_of(row, arguments.sharing_columns - 1, split));
    }
    __device__ __forceinline__ uint16_t same_channels() const {
        return uint16_t(1 << rank_of(0, column, split) | 1 << rank_of(arguments.sharing_rows - 1, column, split));
    }
};

// Those of `parts` of the depth that a block has.
struct Share {
    int begin, end;

    __device__ __forceinline__ Share(const Member& member, int parts)
        : begin(int(int64_t(parts) * member.split / member.arguments.splits)),
          end(int(int64_t(parts) * (member.split + 1) / member.arguments.splits)) {}
    __device__ __forceinline__ int count() const { return end - begin; }
};

// A block's part of a cluster's tiles: first row and column, and its parts of the depth, the taps' and the shortcut's.
struct Place {
    int row, column, phase;
    Share taps, shortcut;
};

template <typename Shape>
__device__ __forceinline__ Place place_of(const Member& member, int group) {
    const Conv2dArguments& arguments = member.arguments;
    const int row_group = group / arguments.column_groups;
    return {(row_group % arguments.phase_groups * arguments.sharing_rows + member.row) * Shape::kRows,
        (group % arguments.column_groups * arguments.sharing_columns + member.column) * Shape::kColumns,
        row_group / arguments.phase_groups, Share(member, arguments.parts),
        Share(member, arguments.shortcut_blocks + arguments.tail_blocks)};
}

// A block brings its part of a weight, of a step of the depth, to all with the same channels.
template <typename Shape>
__device__ __forceinline__ void load_weight(
    const Member& member, const CUtensorMap& weight, uint32_t buffer, uint32_t full, int depth, int column) {
    const int rows = Shape::kColumns / member.arguments.sharing_rows;
    hopper::load_box(buffer + member.row * rows * kDepth * 2, &weight, full, depth, column + member.row * rows,
        member.same_channels());
}

// A block of the shortcut's channels, of the pixels from `row` on, to `blocks`.
__device__ __forceinline__ void load_shortcut(
    const Conv2dArguments& arguments, uint32_t buffer, uint32_t full, int block, int row, uint16_t blocks) {
    const int behind = block - arguments.shortcut_blocks;
    hopper::load_box(buffer, behind < 0 ? &arguments.shortcut : &arguments.tail, full,
        (behind < 0 ? block : behind) * kDepth, row, blocks);
}

// Box `index` of a tile's residual: 128 rows, 64 columns.
template <typename Shape>
__device__ __forceinline__ void load_residual(
    const Member& member, uint32_t buffer, uint32_t full, int index, const Place& place) {
    constexpr int kParts = Shape::kRows / kResidualRows;
    hopper::load_box(buffer, &member.arguments.residual, full, place.column + index / kParts * kDepth,
        place.row + index % kParts * kResidualRows, member.own());
}

// A thread's sums for 64 rows of its warpgroup.
template <typename T, int kSums>
struct Rows {
    float sum[kSums];

    // What is added to all products of a column, from this thread's first row and column on; zeros for a block with a
    // later part of the depth.
    __device__ __forceinline__ void begin(const Conv2dArguments& arguments, bool first_part, int row, int column) {
#pragma unroll
        for (float& value : sum) value = 0.f;
        if (!first_part) return;
        const int left = arguments.channels - column;
        if (arguments.bias != nullptr) {
            const auto* const bias = static_cast<const uint16_t*>(arguments.bias) + column;
            add_columns(bias, bias, left);
        }
        if (arguments.channel_add != nullptr) {
            const auto* const add = static_cast<const uint16_t*>(arguments.channel_add) + column;
            const auto of = [&](int pixel) {
                return add + min(pixel, arguments.pixels - 1) / arguments.image_pixels * arguments.channel_add_stride;
            };
            add_columns(of(row), of(row + 8), left);
        }
    }

    // To its upper and lower row: two neighbouring values of every 8, of which `left` are there.
    __device__ __forceinline__ void add_columns(const uint16_t* upper, const uint16_t* lower, int left) {
#pragma unroll
        for (int i = 0; i < kSums / 4; ++i) {
            if (8 * i >= left) break;
            add_two(4 * i, __ldg(reinterpret_cast<const uint32_t*>(upper + 8 * i)));
            add_two(4 * i + 2, __ldg(reinterpret_cast<const uint32_t*>(lower + 8 * i)));
        }
    }

    // A box of the residual, as TMA has brought it: the columns from `first` on. `row` is this thread's first in the
    // box.
    __device__ __forceinline__ void add_residual(int first, uint32_t box, int row, int lane) {
#pragma unroll
        for (int i = 0; i < kDepth / 8; ++i) {
            if (first / 8 + i >= kSums / 4) break;
            // 8 columns are 16 bytes, the unit of the 128-byte swizzle.
            const uint32_t at = box + row * hopper::kSwizzleBytes + (i ^ (row % 8)) * 16 + lane % 4 * 4;
            add_two(first / 2 + 4 * i, hopper::load_word(at));
            add_two(first / 2 + 4 * i + 2, hopper::load_word(at + 8 * hopper::kSwizzleBytes));
        }
    }

    __device__ __forceinline__ void add_two(int at, uint32_t word) {
        const float2 two = unpack_word(word, T{});
        sum[at] += two.x;
        sum[at + 1] += two.y;
    }

    // Each warp's sums are put together by one block of those that share the depth; true in that one. Nobody loads into
    // `buffer` any more.
    __device__ __forceinline__ bool join(const Member& member, uint32_t buffer, int warp, int lane) {
        constexpr uint32_t kBytes = kSums * 4 * 32;
        const int splits = member.arguments.splits, owner = warp % splits;
        const uint32_t slots = buffer + warp / splits * splits * kBytes + lane * 16;
        hopper::cluster_sync();  // nor does anybody compute with it
        if (owner != member.split) {
            const uint32_t slot =
                hopper::in_block(slots + member.split * kBytes, member.rank_of(member.row, member.column, owner));
#pragma unroll
            for (int i = 0; i < kSums; i += 4) {
                hopper::store_in_cluster(slot + i * 128, make_float4(sum[i], sum[i + 1], sum[i + 2], sum[i + 3]));
            }
        }
        hopper::cluster_sync();
        if (owner != member.split) return false;
        for (int split = 0; split < splits; ++split) {
            if (split == member.split) continue;
#pragma unroll
            for (int i = 0; i < kSums; i += 4) {
                const float4 more = hopper::load_four(slots + split * kBytes + i * 128);
                sum[i] += more.x;
                sum[i + 1] += more.y;
                sum[i + 2] += more.z;
                sum[i + 3] += more.w;
            }
        }
        return true;
    }

    // Applied to all sums before the first is written. A branch at each of them made the code of a tile's end, which
    // runs once a tile, so long that it cost 4 to 5 us a convolution.
    __device__ __forceinline__ void activate(int act) {
        if (act == SFAST_ACT_SILU) {
#pragma unroll
            for (float& value : sum) value = __fdividef(value, 1.f + __expf(-value));
        } else if (act == SFAST_ACT_RELU) {
#pragma unroll
            for (float& value : sum) value = value < 0.f ? 0.f : value;
        }
    }

    // A warp rounds its 16 rows, 32 columns at a time, lays them into one of its `stores` and lets TMA write them.
    // `turn` counts the boxes.
    __device__ __forceinline__ void write(
        const Conv2dArguments& arguments, uint32_t stores, int& turn, int row, int column, int lane) const {
#pragma unroll
        for (int box = 0; box < kSums * 2 / kStoreColumns; ++box) {
            if (column + box * kStoreColumns >= arguments.channels) break;
            const uint32_t store = stores + turn++ % kStores * kStoreBytes;
            if (lane == 0) hopper::store_wait_read<kStores - 1>();
            __syncwarp();
            lay_box(box, store, lane);
            hopper::fence_async();
            __syncwarp();
            if (lane == 0) {
                hopper::store_box(&arguments.out, store, column + box * kStoreColumns, row);
                hopper::store_commit();
            }
        }
    }

    // The same for a phase of a doubled image, whose pixels lie apart: each lane writes 8 channels of two of them.
    __device__ __forceinline__ void write_doubled(
        const Conv2dArguments& arguments, uint32_t store, int phase, int row, int column, int lane) const {
        const int unit = lane % 4, left = arguments.channels - column - unit * 8;
        T* const out = static_cast<T*>(arguments.doubled) + column + unit * 8;
        T* targets[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int pixel = row + half * 8 + lane / 4, within = pixel % arguments.image_pixels;
            const int64_t y =
                int64_t(pixel / arguments.image_pixels) * arguments.out_height + within / arguments.out_width;
            const int64_t at =
                (2 * y + phase / 2) * (2 * arguments.out_width) + 2 * (within % arguments.out_width) + phase % 2;
            targets[half] = pixel < arguments.pixels ? out + at * arguments.channels : nullptr;
        }
#pragma unroll
        for (int box = 0; box < kSums * 2 / kStoreColumns; ++box) {
            if (column + box * kStoreColumns >= arguments.channels) break;
            __syncwarp();
            lay_box(box, store, lane);
            __syncwarp();
            if (box * kStoreColumns >= left) continue;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const uint32_t at = half * 8 + lane / 4;
                if (targets[half] == nullptr) continue;
                const float4 values = hopper::load_four(store + at * kStoreColumns * 2 + (unit ^ (at / 2 % 4)) * 16);
                *reinterpret_cast<float4*>(targets[half] + box * kStoreColumns) = values;
            }
        }
    }

    // A warp's 16 rows of 32 columns, rounded, in the 64-byte swizzle.
    __device__ __forceinline__ void lay_box(int box, uint32_t store, int lane) const {
#pragma unroll
        for (int i = 0; i < kStoreColumns / 16; ++i) {
            uint32_t words[4];  // 16 x 16: the upper and lower 8 rows of the left, then of the right 8 columns
#pragma unroll
            for (int word = 0; word < 4; ++word) {
                const float* const two = sum + 16 * box + 8 * i + 2 * word;
                words[word] = pack_word(two[0], two[1], T{});
            }
            const uint32_t at = lane % 16, unit = (2 * i + lane / 16) ^ (at / 2 % 4);
            hopper::store_matrices(store + at * kStoreColumns * 2 + unit * 16, words);
        }
    }
};

// What the threads that don't compute do while sums are joined.
__device__ __forceinline__ void let_join() {
    hopper::cluster_sync();
    hopper::cluster_sync();
}

// Runs one of a kernel's two parts in each warpgroup. Barriers have been made.
template <typename Load, typename Compute>
__device__ __forceinline__ void part_warpgroups(
    const Conv2dArguments& arguments, const Load& load, const Compute& compute) {
    if (threadIdx.x == kComputing * kWarpgroup) {
        hopper::prefetch_map(&arguments.x);
        hopper::prefetch_map(&arguments.weight);
        if (arguments.has_residual) hopper::prefetch_map(&arguments.residual);
        if (arguments.shortcut_blocks > 0) {
            hopper::prefetch_map(&arguments.shortcut);
            hopper::prefetch_map(&arguments.shortcut_weight);
        }
        if (arguments.tail_blocks > 0) hopper::prefetch_map(&arguments.tail);
        if (arguments.phases == 1) hopper::prefetch_map(&arguments.out);
    }
    hopper::cluster_sync();  // the other blocks' barriers have been made too
    // the same in all lanes, which the compiler then knows
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
    if (warp >= kWarps) {
        hopper::shrink_registers<kLoadingRegisters>();
        if (threadIdx.x == kComputing * kWarpgroup) load();
        __syncwarp();
        if (arguments.splits > 1) let_join();
    } else {
        hopper::grow_registers<kComputingRegisters>();
        compute(warp);
        if (threadIdx.x % 32 == 0) hopper::store_wait_read<0>();  // shared memory must outlast the last store's read
        __syncwarp();
    }
    hopper::cluster_sync();  // and what the other blocks load and tell
}

#endif  // SFAST_HOPPER

}  // namespace
}  // namespace sfast
#endif
