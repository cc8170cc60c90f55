// The kernel of scaled_linear.cu: a product of 8-bit matrices on compute capability 9.0a, with all that follows it.
//
// A block is three warpgroups (three_warpgroups.cuh), two of which compute 64 rows of a tile each, all its columns, with
// the accumulators in registers. Blocks of a cluster have the same columns and different rows: each brings a part of the
// weight's rows to all of them, because a multiprocessor alone would take more from L2 than it gets when all do.
//
// A gated product has two weights. A tile's rows of the one and of the other lie behind each other in shared memory, as
// one operand: then a thread has a column of the value and of its gate, and gating moves nothing. The weights stay as
// they are in memory.
//
// No atomics and no order that depends on time: equal inputs give equal bits.
#pragma once

#include "pack.cuh"
#include "tensor_map.cuh"
#include "three_warpgroups.cuh"
#include "wgmma_eight_bit.cuh"

#if CUDART_VERSION >= 12000

namespace sfast {
namespace {

namespace eight_bit {

constexpr int kRows = kComputing * 64;         // of a tile
constexpr int kDepth = hopper::kSwizzleBytes;  // of a step, elements and bytes
constexpr int kInstructionDepth = 32;          // of a wgmma
constexpr int kMostSharing = 4;                // blocks of a cluster

constexpr int kFactorBytes = 256 / 2 * 16;  // of a warpgroup: of two columns, their scales and biases in float32
constexpr int kBufferBytes =                // to load into
    kSharedBytes - hopper::kSwizzleAtomBytes - kWarps * kStores * kStoreBytes - kComputing * kFactorBytes;

template <int kTileColumns, bool kHasGate>
struct Tile {
    static constexpr int kColumns = kTileColumns;  // that are computed
    static constexpr bool kGate = kHasGate;
    static constexpr int kWritten = kGate ? kColumns / 2 : kColumns;
    static constexpr int kSums = kColumns / 2;  // of a thread
    static constexpr int kLeftBytes = kRows * kDepth;
    static constexpr int kStageBytes = kLeftBytes + kColumns * kDepth;
    static constexpr int kStages = kBufferBytes / kStageBytes;
    static_assert(2 * kStages * sizeof(uint64_t) <= kBarrierBytes, "the barriers have their place");
    static_assert(kWritten % kStoreColumns == 0, "boxes fill a tile");
};

// Into how many boxes a tile's weight is cut, for clusters of `sharing` blocks.
__host__ __device__ constexpr int boxes_of(int sharing, bool gate) { return gate && sharing < 2 ? 2 : sharing; }

struct Arguments {
    CUtensorMap x, weight, gate_weight, out;
    const float *row_scales, *column_scales, *gate_scales;
    int row_scale_step, column_scale_step;  // 1, or 0: one for all
    Vector bias, gate_bias;
    int rows, columns, steps;  // of the result; of the depth
    int sharing;               // blocks of a cluster
    // groups of rows that a column's tiles are computed for before the next column's
    int band;
    int row_groups, column_tiles;  // a group is a cluster's rows
    int act;
    bool half;  // whether the result is float16; else bfloat16
};

#ifdef SFAST_HOPPER

// Where one is in a ring of buffers, and the parity of the phase of their barriers. A buffer has two: full, when TMA
// has brought all of it; empty, when each warp that computes with it, of each block that it is brought to, is done.
template <int kStages>
struct Ring {
    uint32_t stage = 0, parity = 0;

    __device__ __forceinline__ void advance() {
        if (++stage == kStages) {
            stage = 0;
            parity ^= 1;
        }
    }
};

struct Place {
    int row, column;  // the block's first
};

template <typename Shape>
__device__ __forceinline__ Place place_of(const Arguments& arguments, int tile, int rank) {
    const int of_band = arguments.band * arguments.column_tiles, band = tile / of_band, within = tile % of_band;
    const int first = band * arguments.band, groups = min(arguments.band, arguments.row_groups - first);
    return {((first + within % groups) * arguments.sharing + rank) * kRows, within / groups * Shape::kWritten};
}

__device__ __forceinline__ float activated(float value, int act) {
    if (act == SFAST_ACT_SILU) return __fdividef(value, 1.f + __expf(-value));
    if (act == SFAST_ACT_GELU) return 0.5f * value * (1.f + erff(value * 0.7071067811865476f));
    // GELU's tanh approximation: (1 + tanh z) / 2 = 1 / (1 + e^-2z)
    return __fdividef(value, 1.f + __expf(-1.5957691216057308f * value * (1.f + 0.044715f * value * value)));
}

template <typename Kind, typename Shape>
struct Product {
    static constexpr int kStages = Shape::kStages;

    const Arguments& arguments;
    int rank, cluster, clusters;
    uint32_t buffers, stores, factors, full, empty;

    __device__ __forceinline__ Product(const Arguments& all, const void* shared, const uint64_t* barriers)
        : arguments(all),
          rank(int(hopper::cluster_rank())),
          cluster(blockIdx.x / all.sharing),
          clusters(gridDim.x / all.sharing),
          buffers(hopper::first_buffer(shared)),
          stores(buffers + kStages * Shape::kStageBytes),
          factors(stores + kWarps * kStores * kStoreBytes),
          full(hopper::shared_address(barriers)),
          empty(full + 8 * kStages) {}

    __device__ __forceinline__ int tiles() const { return arguments.row_groups * arguments.column_tiles; }
    __device__ __forceinline__ uint32_t left(uint32_t stage) const { return buffers + stage * Shape::kStageBytes; }
    __device__ __forceinline__ uint32_t right(uint32_t stage) const { return left(stage) + Shape::kLeftBytes; }

    __device__ __forceinline__ void init_barriers() const {
        for (int stage = 0; stage < kStages; ++stage) {
            hopper::barrier_init(full + 8 * stage, 1);
            hopper::barrier_init(empty + 8 * stage, arguments.sharing * kWarps);
        }
        hopper::barrier_init_done();
    }

    // One thread brings the steps of all tiles: its own rows of x, and its part of the weight to all blocks of the
    // cluster. A block whose rows are all past the end brings zeros: the others need its part.
    __device__ __forceinline__ void load() const {
        const int boxes = boxes_of(arguments.sharing, Shape::kGate), box_rows = Shape::kColumns / boxes;
        const int own = boxes / arguments.sharing, first = rank * own;
        const uint16_t all = uint16_t((1 << arguments.sharing) - 1), self = uint16_t(1 << rank);
        Ring<kStages> ring;
        for (int tile = cluster; tile < tiles(); tile += clusters) {
            const Place place = place_of<Shape>(arguments, tile, rank);
            for (int step = 0; step < arguments.steps; ++step) {
                const uint32_t barrier = full + 8 * ring.stage;
                hopper::barrier_wait(empty + 8 * ring.stage, ring.parity ^ 1);
                hopper::barrier_arrive_expecting(barrier, Shape::kStageBytes);
                // Maps count in 16-bit units.
                hopper::load_box(left(ring.stage), &arguments.x, barrier, step * kDepth / 2, place.row, self);
                for (int box = first; box < first + own; ++box) {
                    const bool gates = Shape::kGate && box >= boxes / 2;
                    const int within = gates ? box - boxes / 2 : box;
                    hopper::load_box(right(ring.stage) + box * box_rows * kDepth,
                        gates ? &arguments.gate_weight : &arguments.weight, barrier, step * kDepth / 2,
                        place.column + within * box_rows, all);
                }
                ring.advance();
            }
        }
    }

    // A warpgroup computes its 64 rows of all tiles.
    __device__ __forceinline__ void compute(int warp) const {
        const int lane = threadIdx.x % 32, group_row = warp / 4 * 64 + warp % 4 * kWarpRows;
        // Lanes tell the blocks of the cluster, each another one, that the warp is done with a step.
        const bool tells = lane < arguments.sharing;
        const uint32_t told = hopper::in_block(empty, tells ? lane : 0);
        const auto release = [&](uint32_t stage) {
            if (tells) hopper::barrier_arrive_in_cluster(told + 8 * stage);
        };
        Ring<kStages> ring;
        typename Kind::Sum sum[Shape::kSums];
        int turn = 0;
        const auto add_step = [&](int add) {
            hopper::barrier_wait(full + 8 * ring.stage, ring.parity);
            const uint64_t rows = hopper::operand(left(ring.stage) + warp / 4 * 64 * kDepth),
                           weight = hopper::operand(right(ring.stage));
            hopper::wgmma_fence();
#pragma unroll
            for (int k = 0; k < kDepth / kInstructionDepth; ++k) {
                multiply(Kind{}, sum, rows + k * (kInstructionDepth / 16), weight + k * (kInstructionDepth / 16),
                    k == 0 ? add : 1);
            }
            hopper::wgmma_commit();
        };
        for (int tile = cluster; tile < tiles(); tile += clusters) {
            const Place place = place_of<Shape>(arguments, tile, rank);
            // The first step stands before the loop: in it, the compiler would let each step begin only when the one
            // before has ended.
            add_step(0);
            uint32_t before = ring.stage;
            ring.advance();
            hopper::named_wait(1 + warp / 4, kWarpgroup);  // all warps are done with the factors of the tile before
            bring_factors(warp, place.column);
            for (int left = arguments.steps - 1; left > 0; --left) {
                add_step(1);
                hopper::wgmma_wait<1>();  // this step is under way, the one before is done
                release(before);
                before = ring.stage;
                ring.advance();
            }
            hopper::wgmma_wait<0>();
            release(before);
            hopper::named_wait(1 + warp / 4, kWarpgroup);  // the factors are there
            const int row = place.row + group_row;
            if (row >= arguments.rows) continue;
            float value[Shape::kSums];
            scale(sum, value, row + lane / 4, factors + warp / 4 * kFactorBytes + lane % 4 * 16);
            write(value, turn, row, place.column, stores + warp * kStores * kStoreBytes, lane);
        }
    }

    // Scales and biases of a tile's columns to shared memory, two columns a thread of a warpgroup; those past the end
    // are the last ones'.
    __device__ __forceinline__ void bring_factors(int warp, int column) const {
        const int pair = threadIdx.x % kWarpgroup;
        if (pair >= Shape::kColumns / 2) return;
        const bool gates = Shape::kGate && pair >= Shape::kColumns / 4;
        const int at = min(column + 2 * (gates ? pair - Shape::kColumns / 4 : pair), arguments.columns - 2);
        const float* const scales =
            (gates ? arguments.gate_scales : arguments.column_scales) + at * arguments.column_scale_step;
        float add[2];
        (gates ? arguments.gate_bias : arguments.bias).template load<2>(at, 0.f, add);
        hopper::store_four(factors + warp / 4 * kFactorBytes + pair * 16,
            make_float4(__ldg(scales), __ldg(scales + arguments.column_scale_step), add[0], add[1]));
    }

    // From sums to values, for a thread's two rows; its first factors.
    __device__ __forceinline__ void scale(
        const typename Kind::Sum (&sum)[Shape::kSums], float (&value)[Shape::kSums], int row, uint32_t factor) const {
        const int last = arguments.rows - 1, step = arguments.row_scale_step;
        const float upper = __ldg(arguments.row_scales + min(row, last) * step),
                    lower = __ldg(arguments.row_scales + min(row + 8, last) * step);
#pragma unroll
        for (int i = 0; i < Shape::kSums / 4; ++i) {
            const float4 of = hopper::load_four(factor + i * 64);
            value[4 * i] = fmaf(float(sum[4 * i]), upper * of.x, of.z);
            value[4 * i + 1] = fmaf(float(sum[4 * i + 1]), upper * of.y, of.w);
            value[4 * i + 2] = fmaf(float(sum[4 * i + 2]), lower * of.x, of.z);
            value[4 * i + 3] = fmaf(float(sum[4 * i + 3]), lower * of.y, of.w);
        }
        activate(value);
    }

    // One branch for all values: one at each would make the code of a tile's end too long.
    __device__ __forceinline__ void activate(float (&value)[Shape::kSums]) const {
        const auto apply = [&](auto act) {
            constexpr int kGated = Shape::kGate ? Shape::kSums / 2 : 0;
#pragma unroll
            for (int i = kGated; i < Shape::kSums; ++i) {
                value[i - kGated] = Shape::kGate ? value[i - kGated] * act(value[i]) : act(value[i]);
            }
        };
        switch (arguments.act) {
            case SFAST_ACT_SILU: return apply([](float of) { return activated(of, SFAST_ACT_SILU); });
            case SFAST_ACT_GELU: return apply([](float of) { return activated(of, SFAST_ACT_GELU); });
            case SFAST_ACT_GELU_TANH: return apply([](float of) { return activated(of, SFAST_ACT_GELU_TANH); });
            default:
                if constexpr (Shape::kGate) apply([](float of) { return of; });
        }
    }

    // A warp rounds its 16 rows, 32 columns at a time, lays them into one of its `store`s and lets TMA write them.
    // `turn` counts the boxes.
    __device__ __forceinline__ void write(
        const float (&value)[Shape::kSums], int& turn, int row, int column, uint32_t store, int lane) const {
#pragma unroll
        for (int box = 0; box < Shape::kWritten / kStoreColumns; ++box) {
            if (column + box * kStoreColumns >= arguments.columns) break;
            const uint32_t target = store + turn++ % kStores * kStoreBytes;
            if (lane == 0) hopper::store_wait_read<kStores - 1>();
            __syncwarp();
#pragma unroll
            for (int i = 0; i < kStoreColumns / 16; ++i) {
                uint32_t words[4];  // 16 x 16: the upper and lower 8 rows of the left, then of the right 8 columns
#pragma unroll
                for (int word = 0; word < 4; ++word) {
                    const float* const two = value + 16 * box + 8 * i + 2 * word;
                    // Both, and one is taken: less than another kernel to compile for each.
                    const uint32_t halves = pack_word(two[0], two[1], __half{}),
                                   brains = pack_word(two[0], two[1], __nv_bfloat16{});
                    words[word] = arguments.half ? halves : brains;
                }
                const uint32_t at = lane % 16, unit = (2 * i + lane / 16) ^ (at / 2 % 4);  // the 64-byte swizzle
                hopper::store_matrices(target + at * kStoreColumns * 2 + unit * 16, words);
            }
            hopper::fence_async();
            __syncwarp();
            if (lane == 0) {
                hopper::store_box(&arguments.out, target, column + box * kStoreColumns, row);
                hopper::store_commit();
            }
        }
    }
};

#endif  // SFAST_HOPPER

}  // namespace eight_bit

template <typename Kind, typename Shape>
__global__ void __launch_bounds__(kBlockThreads, 1)
    scaled_linear_kernel(const __grid_constant__ eight_bit::Arguments arguments) {
#ifdef SFAST_HOPPER
    using namespace eight_bit;
    extern __shared__ uint8_t shared[];
    __shared__ uint64_t barriers[2 * Shape::kStages];
    const Product<Kind, Shape> product(arguments, shared, barriers);
    if (threadIdx.x == 0) product.init_barriers();
    if (threadIdx.x == kComputing * kWarpgroup) {
        hopper::prefetch_map(&arguments.x);
        hopper::prefetch_map(&arguments.weight);
        if (Shape::kGate) hopper::prefetch_map(&arguments.gate_weight);
        hopper::prefetch_map(&arguments.out);
    }
    __syncthreads();
    hopper::cluster_sync();  // the other blocks' barriers have been made too
    // the same in all lanes, which the compiler then knows
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
    if (warp >= kWarps) {
        hopper::shrink_registers<kLoadingRegisters>();
        if (threadIdx.x == kComputing * kWarpgroup) product.load();
        __syncwarp();
    } else {
        hopper::grow_registers<kComputingRegisters>();
        product.compute(warp);
        if (threadIdx.x % 32 == 0) hopper::store_wait_read<0>();  // shared memory must outlast the last store's read
        __syncwarp();
    }
    hopper::cluster_sync();  // and what the other blocks load and tell
#endif
}

}  // namespace
}  // namespace sfast
#endif
