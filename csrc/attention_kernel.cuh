// The kernel of attention.cu: out = softmax(scale * q @ k^T) @ v for narrow heads, on compute capability 9.0a.
//
// Heads of 40 are padded to 64 by other kernels. Here TMA brings 40 columns, and zeros into the rest of a row of 128
// bytes, so that a row of shared memory is one swizzled row: the scores take 3 steps of wgmma along the head instead of
// 4, the values a wgmma of 40 columns. Heads of 64 fill such a row.
//
// A block has 256 queries of one head, or 192 where heads are wider, 64 to a warpgroup, whose scores with 128 keys at a
// time never leave registers. One thread of a further warpgroup loads keys and values, kStages tiles ahead. The
// warpgroups take turns with the tensor cores: without the turns they would all multiply, and then all exponentiate, at
// the same time (H100, 2 x 8 heads of 40, 4096 tokens: 124 us without, 118 with; cuDNN 160).
//
// A multiprocessor has one block, which takes one tile of queries after the other: the next one's queries and first
// keys are loaded while the last one's sums are written (2 x 20 heads of 64, 1024 tokens: 35.2 us with a block for each
// tile, 32.1 so; cuDNN 34.7). For multiprocessors to be done at the same time, tiles are of two heights (29.7 us): low
// ones leave one warpgroup out, and come behind all tall ones. Or the last tall tiles go to pairs of blocks: clusters
// whose blocks have the same queries, half of the keys each, and put their sums together through shared memory. The
// caller says how heads are cut (sfast_core/ops/attention/cut.py).
//
// No atomics and no order that depends on time: equal inputs give equal bits.
#pragma once

#include "attention_products.cuh"
#include "attention_work.cuh"

#if CUDART_VERSION >= 12000

namespace sfast {
namespace {

#ifdef SFAST_HOPPER

constexpr int kFirstTurn = 1;  // the named barrier of the first warpgroup's turn; 0 is __syncthreads'

__device__ __forceinline__ float exp2_of(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Box `row` of a head of an image, in the four dimensions of a tensor map: head's columns, rows, heads, images.
__device__ __forceinline__ void load_rows(
    uint32_t target, const CUtensorMap& map, uint32_t barrier, int row, int head, int image) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(target),
        "l"(&map), "r"(barrier), "r"(0), "r"(row), "r"(head), "r"(image)
        : "memory");
}

// What is where in shared memory. A tile has two barriers: full, when TMA has brought it; free, when each computing
// warp is done with it.
template <int kHead>
struct AttentionShared {
    static constexpr int kBarriers = 2 * kQueryStages + 4 * kStages;
    static constexpr int kQueryBytes = Block<kHead>::kComputing * kGroupBytes;

    uint32_t q, k, v;
    uint32_t q_full, q_free, k_full, v_full, k_free, v_free;

    __device__ __forceinline__ AttentionShared(const void* buffers, const uint64_t* barriers) {
        q = hopper::first_buffer(buffers);
        k = q + kQueryStages * kQueryBytes;
        v = k + kStages * kTileBytes;
        q_full = hopper::shared_address(barriers);
        q_free = q_full + 8 * kQueryStages;
        k_full = q_free + 8 * kQueryStages;
        v_full = k_full + 8 * kStages;
        k_free = v_full + 8 * kStages;
        v_free = k_free + 8 * kStages;
    }
};

// Where the tile that is taken as number `index` of this block lies, keys or values, and the parity of its phase of the
// barriers; and the same of the queries of a turn.
template <int kCount>
struct PlaceIn {
    int stage, parity;
    __device__ __forceinline__ explicit PlaceIn(int index) : stage(index % kCount), parity(index / kCount % 2) {}
};
using TilePlace = PlaceIn<kStages>;
using QueryPlace = PlaceIn<kQueryStages>;

template <int kHead>
__device__ __forceinline__ void load_all(
    const AttentionArguments& arguments, const Plan& plan, const AttentionShared<kHead>& shared, int rank) {
    using Shared = AttentionShared<kHead>;
    int index = 0;
    for (int turn = 0, tile = tile_of(plan, 0); tile < plan.tiles; tile = tile_of(plan, ++turn)) {
        const Work work = work_at<kHead>(arguments, plan, rank, tile);
        const QueryPlace queries(turn);
        const uint32_t q_full = shared.q_full + 8 * queries.stage;
        // Warps that a low tile leaves out are done with it from the start.
        const int absent = (Block<kHead>::kComputing - work.groups) * 4;
        const auto take = [&](uint32_t full, uint32_t free, int parity, int bytes) {
            hopper::barrier_wait(free, parity ^ 1);
            if (absent > 0) hopper::barrier_arrive(free, absent);
            hopper::barrier_arrive_expecting(full, bytes);
        };
        take(q_full, shared.q_free + 8 * queries.stage, queries.parity, work.groups * kGroupBytes);
        for (int group = 0; group < work.groups; ++group) {
            load_rows(shared.q + queries.stage * Shared::kQueryBytes + group * kGroupBytes, arguments.q, q_full,
                work.first + group * kGroupQueries, work.head, work.image);
        }
        for (int step = work.begin; step < work.end; ++step, ++index) {
            const TilePlace at(index);
            take(shared.k_full + 8 * at.stage, shared.k_free + 8 * at.stage, at.parity, kTileBytes);
            load_rows(shared.k + at.stage * kTileBytes, arguments.k, shared.k_full + 8 * at.stage, step * kKeys,
                work.head, work.image);
            take(shared.v_full + 8 * at.stage, shared.v_free + 8 * at.stage, at.parity, kTileBytes);
            load_rows(shared.v + at.stage * kTileBytes, arguments.v, shared.v_full + 8 * at.stage, step * kKeys,
                work.head, work.image);
        }
    }
}

// 64 queries: a thread has two rows, 8 apart, and of each the columns 2 (lane % 4) and the next one of every 8.
template <typename T, int kHead>
struct QueryGroup {
    float scores[kKeys / 2];      // of one tile
    uint32_t weights[kKeys / 4];  // their exponentials, rounded, two to a register
    float sum[kHead / 2];         // of weights times values, so far
    // of each row: the largest score so far, this thread's part of the sum of exponentials
    float top[2], total[2];

    // The scores, of keys of which the first `left` are there, become weights. What was summed before is scaled to the
    // new largest score.
    __device__ __forceinline__ void soften(float factor, int left, int lane) {
        if (left < kKeys) {
#pragma unroll
            for (int i = 0; i < kKeys / 2; ++i) {
                if (i / 4 * 8 + lane % 4 * 2 + i % 2 >= left) scores[i] = -INFINITY;
            }
        }
        float larger[2] = {top[0], top[1]}, shift[2], scale[2];
#pragma unroll
        for (int i = 0; i < kKeys / 2; i += 2)
            larger[i / 2 % 2] = fmaxf(larger[i / 2 % 2], fmaxf(scores[i], scores[i + 1]));
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            larger[row] = fmaxf(larger[row], __shfl_xor_sync(~0u, larger[row], 1));
            larger[row] = fmaxf(larger[row], __shfl_xor_sync(~0u, larger[row], 2));
            shift[row] = larger[row] * factor;
            scale[row] = exp2_of(top[row] * factor - shift[row]);
            top[row] = larger[row];
            total[row] *= scale[row];
        }
#pragma unroll
        for (int i = 0; i < kKeys / 2; i += 2) {
            const int row = i / 2 % 2;
            const float low = exp2_of(fmaf(scores[i], factor, -shift[row])),
                        high = exp2_of(fmaf(scores[i + 1], factor, -shift[row]));
            total[row] += low + high;
            weights[i / 2] = rounded<T>(low, high);
        }
#pragma unroll
        for (int i = 0; i < kHead / 2; ++i) sum[i] *= scale[i / 2 % 2];
    }

    // The first of its two rows becomes that of both blocks' keys in the block of rank 0, the second in that of rank 1.
    // `buffer` is where each block has room for what the other tells it: two floats of each thread, side by side, for
    // each two columns and for top and total.
    __device__ __forceinline__ void join(uint32_t buffer, int rank, float factor) {
        constexpr int kPairs = kHead / 8, kStep = Block<kHead>::kComputing * kWarpgroup * 8;
        const uint32_t own = buffer + threadIdx.x * 8, other = hopper::in_block(own, rank ^ 1);
        const auto pick = [&](float first, float second) { return rank == 0 ? first : second; };
        hopper::cluster_sync();  // the other block needs no keys and values any more
#pragma unroll
        for (int i = 0; i < kPairs; ++i) {
            hopper::store_in_cluster(
                other + i * kStep, pick(sum[4 * i + 2], sum[4 * i]), pick(sum[4 * i + 3], sum[4 * i + 1]));
        }
        hopper::store_in_cluster(other + kPairs * kStep, pick(top[1], top[0]), pick(total[1], total[0]));
        hopper::cluster_sync();
        const float2 told = hopper::load_pair(own + kPairs * kStep);  // top and total
        const float own_top = pick(top[0], top[1]), larger = fmaxf(own_top, told.x);
        const float scale = exp2_of((own_top - larger) * factor), told_scale = exp2_of((told.x - larger) * factor);
        const float all = pick(total[0], total[1]) * scale + told.y * told_scale;
        total[0] = total[1] = all;
#pragma unroll
        for (int i = 0; i < kPairs; ++i) {
            const float2 more = hopper::load_pair(own + i * kStep);
            const float low = pick(sum[4 * i], sum[4 * i + 2]) * scale + more.x * told_scale;
            const float high = pick(sum[4 * i + 1], sum[4 * i + 3]) * scale + more.y * told_scale;
            sum[4 * i] = sum[4 * i + 2] = low;
            sum[4 * i + 1] = sum[4 * i + 3] = high;
        }
    }

    // Row `row` of its two, if it is one of the `rows` that there are from this thread's first on.
    template <int kRow>
    __device__ __forceinline__ void store(T* out, int64_t row_stride, int rows) const {
        float all = total[kRow] + __shfl_xor_sync(~0u, total[kRow], 1);
        all += __shfl_xor_sync(~0u, all, 2);
        const float share = 1.f / all;
        if (8 * kRow >= rows) return;
#pragma unroll
        for (int i = 2 * kRow; i < kHead / 2; i += 4) {
            *reinterpret_cast<uint32_t*>(out + 8 * kRow * row_stride + i / 4 * 8) =
                rounded<T>(sum[i] * share, sum[i + 1] * share);
        }
    }
};

template <typename T, int kHead, bool kHalves>
__device__ __forceinline__ void compute(
    const AttentionArguments& arguments, const Plan& plan, const AttentionShared<kHead>& shared, int rank) {
    constexpr int kComputing = Block<kHead>::kComputing;
    const int group = threadIdx.x / kWarpgroup, lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    QueryGroup<T, kHead> rows;
    uint64_t q = 0;

    const auto multiply = [&](int stage) {
        const uint64_t k = hopper::operand(shared.k + stage * kTileBytes);
        hopper::wgmma_fence();
#pragma unroll
        for (int step = 0; step < (kHead + 15) / 16; ++step)
            multiply_keys<T>(rows.scores, q + 2 * step, k + 2 * step, step > 0);
        hopper::wgmma_commit();
        hopper::wgmma_wait<0>();
    };
    const auto add = [&](int stage) {
        const uint64_t v = hopper::operand(shared.v + stage * kTileBytes);
        hopper::wgmma_fence();
#pragma unroll
        for (int step = 0; step < kKeys / 16; ++step) {  // 16 rows further on, in units of 16 bytes
            add_values<T>(rows.sum, rows.weights + 4 * step, v + step * kRowBytes);
        }
        hopper::wgmma_commit();
        hopper::wgmma_wait<0>();
    };
    const auto free = [&](uint32_t barrier) {
        if (lane == 0) hopper::barrier_arrive(barrier);
    };
    if (group == kComputing - 1) hopper::named_arrive(kFirstTurn, 2 * kWarpgroup);
    int index = 0, next = tile_of(plan, 0);
    for (int turn = 0; next < plan.tiles; ++turn) {
        const Work work = work_at<kHead>(arguments, plan, rank, next);
        if (group >= work.groups) break;  // low tiles come last
        next = tile_of(plan, turn + 1);
        const bool more = next < plan.tiles;
        // A turn with the tensor cores is a barrier that the warpgroup before arrives at and the one whose turn it is
        // waits at. A tile's last warpgroup arrives for the first's next turn, but not for one that never comes: nobody
        // would wait for it.
        const auto begin_turn = [&] { hopper::named_wait(kFirstTurn + group, 2 * kWarpgroup); };
        const auto end_turn = [&](bool last) {
            const bool closes = group == work.groups - 1;
            if (!last || !closes) hopper::named_arrive(kFirstTurn + (closes ? 0 : group + 1), 2 * kWarpgroup);
        };
        rows.top[0] = rows.top[1] = -INFINITY;
        rows.total[0] = rows.total[1] = 0.f;
#pragma unroll
        for (float& value : rows.sum) value = 0.f;
        const QueryPlace queries(turn);
        q = hopper::operand(shared.q + queries.stage * AttentionShared<kHead>::kQueryBytes + group * kGroupBytes);
        const auto ends = [&](int step) { return step == work.end - 1; };

        const TilePlace first(index++);
        hopper::barrier_wait(shared.q_full + 8 * queries.stage, queries.parity);
        hopper::barrier_wait(shared.k_full + 8 * first.stage, first.parity);
        begin_turn();
        multiply(first.stage);
        end_turn(ends(work.begin) && !more);
        free(shared.k_free + 8 * first.stage);
        rows.soften(arguments.factor, arguments.keys - work.begin * kKeys, lane);
        for (int step = work.begin + 1; step < work.end; ++step, ++index) {
            const TilePlace at(index), before(index - 1);
            hopper::barrier_wait(shared.k_full + 8 * at.stage, at.parity);
            hopper::barrier_wait(shared.v_full + 8 * before.stage, before.parity);
            begin_turn();
            add(before.stage);
            multiply(at.stage);
            end_turn(ends(step) && !more);
            free(shared.k_free + 8 * at.stage);
            free(shared.v_free + 8 * before.stage);
            rows.soften(arguments.factor, arguments.keys - step * kKeys, lane);
        }
        free(shared.q_free + 8 * queries.stage);
        const TilePlace last(index - 1);
        hopper::barrier_wait(shared.v_full + 8 * last.stage, last.parity);
        add(last.stage);
        free(shared.v_free + 8 * last.stage);
        if (work.paired) rows.join(shared.k, rank, arguments.factor);

        const int row = work.first + group * kGroupQueries + warp * 16 + lane / 4;
        const int64_t row_stride = int64_t(arguments.heads) * kHead;
        T* out = static_cast<T*>(arguments.out) + (int64_t(work.image) * arguments.queries + row) * row_stride;
        out += work.head * kHead + lane % 4 * 2;
        for (int copy = 0; copy < (kHalves ? plan.copies : 1); ++copy, out += arguments.half_elements) {
            if (!work.paired || rank == 0) rows.template store<0>(out, row_stride, arguments.queries - row);
            if (!work.paired || rank == 1) rows.template store<1>(out, row_stride, arguments.queries - row);
        }
    }
}

#endif

template <typename T, int kHead, bool kHalves>
__global__ void __launch_bounds__(Block<kHead>::kThreads, 1)
    attention_kernel(const __grid_constant__ AttentionArguments arguments) {
#ifdef SFAST_HOPPER
    extern __shared__ uint8_t buffers[];
    using Here = Block<kHead>;
    using Shared = AttentionShared<kHead>;
    __shared__ uint64_t barriers[Shared::kBarriers];
    __shared__ Plan chosen;
    const Shared shared(buffers, barriers);
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < kQueryStages; ++stage) {
            hopper::barrier_init(shared.q_full + 8 * stage, 1);
            hopper::barrier_init(shared.q_free + 8 * stage, Here::kComputing * 4);
        }
        for (int stage = 0; stage < kStages; ++stage) {
            hopper::barrier_init(shared.k_full + 8 * stage, 1);
            hopper::barrier_init(shared.v_full + 8 * stage, 1);
            hopper::barrier_init(shared.k_free + 8 * stage, Here::kComputing * 4);
            hopper::barrier_init(shared.v_free + 8 * stage, Here::kComputing * 4);
        }
        hopper::barrier_init_done();
        if (kHalves) chosen = *arguments.differ == 0 ? arguments.half : arguments.all;
    }
    __syncthreads();
    const Plan& plan = kHalves ? chosen : arguments.all;
    const int rank = int(hopper::cluster_rank());
    if (threadIdx.x >= Here::kComputing * kWarpgroup) {
        hopper::shrink_registers<Here::kLoadingRegisters>();
        if (threadIdx.x == Here::kComputing * kWarpgroup) load_all<kHead>(arguments, plan, shared, rank);
    } else {
        hopper::grow_registers<Here::kComputingRegisters>();
        compute<T, kHead, kHalves>(arguments, plan, shared, rank);
    }
#endif
}

}  // namespace
}  // namespace sfast

#endif
