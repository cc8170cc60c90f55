// The kernel of attention.cu: out = softmax(scale * q @ k^T) @ v for narrow heads, on compute capability 9.0a.
//
// Heads of 40 are padded to 64 by other kernels. Here TMA brings 40 columns, and zeros into the rest of a row of 128 bytes, so that a row
// of shared memory is one swizzled row: the scores take 3 steps of wgmma along the head instead of 4, the values a wgmma of 40 columns.
//
// A block has 256 queries of one head, 64 to a warpgroup, whose scores with 128 keys at a time never leave registers. One thread of a
// fifth warpgroup loads keys and values, kStages tiles ahead. The warpgroups take turns with the tensor cores: without the turns they
// would all multiply, and then all exponentiate, at the same time (H100, 2 x 8 heads, 4096 tokens: 124 us without, 118 with; cuDNN 157).
//
// No atomics and no order that depends on time: equal inputs give equal bits.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "hopper.cuh"
#include "tensor_map.cuh"

#if CUDART_VERSION >= 12000

namespace sfast {
namespace {

constexpr int kWarpgroup = 128;  // threads
constexpr int kComputing = 4;    // warpgroups that compute
constexpr int kBlockThreads = (kComputing + 1) * kWarpgroup;
constexpr int kGroupQueries = 64;
constexpr int kBlockQueries = kComputing * kGroupQueries;
constexpr int kKeys = 128;  // of a tile
constexpr int kStages = 4;  // tiles of keys, and of values, that fit into shared memory
constexpr int kRowBytes = hopper::kSwizzleBytes;
constexpr int kGroupBytes = kGroupQueries * kRowBytes;
constexpr int kTileBytes = kKeys * kRowBytes;
constexpr int kSharedBytes = hopper::kSwizzleAtomBytes + kComputing * kGroupBytes + 2 * kStages * kTileBytes;

struct AttentionArguments {
    CUtensorMap q, k, v;
    void* out;  // [batch, queries, heads, head]
    int heads, queries, keys;
    float factor;  // scale * log2(e)
};

#ifdef SFAST_HOPPER

// 65536 registers are 102 for each of 640 threads, of which 96 can be had; 4 * 112 + 24 <= 5 * 96.
constexpr int kComputingRegisters = 112;
constexpr int kLoadingRegisters = 24;
constexpr int kFirstTurn = 1;  // the named barrier of the first warpgroup's turn; 0 is __syncthreads'

__device__ __forceinline__ float exp2_of(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

template <typename T>
__device__ __forceinline__ uint32_t rounded(float low, float high);
template <>
__device__ __forceinline__ uint32_t rounded<__half>(float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
}
template <>
__device__ __forceinline__ uint32_t rounded<__nv_bfloat16>(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
}

#define SFAST_FOUR(array, i) "+f"(array[i]), "+f"(array[i + 1]), "+f"(array[i + 2]), "+f"(array[i + 3])
#define SFAST_SIXTEEN(array, i) SFAST_FOUR(array, i), SFAST_FOUR(array, i + 4), SFAST_FOUR(array, i + 8), SFAST_FOUR(array, i + 12)

// scores [64, 128] = (accumulate ? scores : 0) + q [64, 16] @ k [128, 16]^T, by a warpgroup. Thread t has of it, for j in 0..15, the
// columns 8 j + 2 (t % 4) and the next one: scores[4 j] and scores[4 j + 1] of row 16 (t / 32) + t % 32 / 4, the next two of the row 8 below.
#define SFAST_SCORES(TYPE)                                                                                          \
    asm volatile(                                                                                                   \
        "{\n\t.reg .pred accumulate;\n\t"                                                                           \
        "setp.ne.b32 accumulate, %66, 0;\n\t"                                                                       \
        "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE " {"                                           \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                    \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                          \
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                          \
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "                         \
        "%64, %65, accumulate, 1, 1, 0, 0;\n\t}"                                                                    \
        : SFAST_SIXTEEN(scores, 0), SFAST_SIXTEEN(scores, 16), SFAST_SIXTEEN(scores, 32), SFAST_SIXTEEN(scores, 48) \
        : "l"(q), "l"(k), "r"(int32_t(accumulate)))

template <typename T>
__device__ __forceinline__ void multiply_keys(float (&scores)[64], uint64_t q, uint64_t k, bool accumulate);
template <>
__device__ __forceinline__ void multiply_keys<__half>(float (&scores)[64], uint64_t q, uint64_t k, bool accumulate) {
    SFAST_SCORES("f16");
}
template <>
__device__ __forceinline__ void multiply_keys<__nv_bfloat16>(float (&scores)[64], uint64_t q, uint64_t k, bool accumulate) {
    SFAST_SCORES("bf16");
}
#undef SFAST_SCORES

// sum [64, 40] += weights [64, 16] @ v [16, 40]. Scores of 16 keys, rounded and two to a register, are such weights where they are. The
// rows of v lie as keys' do, but here they are the depth: the last operand has wgmma transpose it.
#define SFAST_VALUES(TYPE)                                                                            \
    asm volatile(                                                                                     \
        "wgmma.mma_async.sync.aligned.m64n40k16.f32." TYPE "." TYPE " {"                              \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19}, " \
        "{%20, %21, %22, %23}, %24, 1, 1, 1, 1;"                                                      \
        : SFAST_SIXTEEN(sum, 0), SFAST_FOUR(sum, 16)                                                  \
        : "r"(weights[0]), "r"(weights[1]), "r"(weights[2]), "r"(weights[3]), "l"(v))

template <typename T>
__device__ __forceinline__ void add_values(float (&sum)[20], const uint32_t* weights, uint64_t v);
template <>
__device__ __forceinline__ void add_values<__half>(float (&sum)[20], const uint32_t* weights, uint64_t v) {
    SFAST_VALUES("f16");
}
template <>
__device__ __forceinline__ void add_values<__nv_bfloat16>(float (&sum)[20], const uint32_t* weights, uint64_t v) {
    SFAST_VALUES("bf16");
}
#undef SFAST_VALUES
#undef SFAST_SIXTEEN
#undef SFAST_FOUR

// Box `row` of a head of an image, in the four dimensions of a tensor map: head's columns, rows, heads, images.
__device__ __forceinline__ void load_rows(uint32_t target, const CUtensorMap& map, uint32_t barrier, int row, int head, int image) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(target),
        "l"(&map), "r"(barrier), "r"(0), "r"(row), "r"(head), "r"(image)
        : "memory");
}

// What is where in shared memory. A tile has two barriers: full, when TMA has brought it; free, when each computing warp is done with it.
struct AttentionShared {
    uint32_t q, k, v;
    uint32_t q_full, k_full, v_full, k_free, v_free;

    __device__ __forceinline__ AttentionShared(const void* buffers, const uint64_t* barriers) {
        const uint32_t atom = hopper::kSwizzleAtomBytes;
        q = (hopper::shared_address(buffers) + atom - 1) / atom * atom;
        k = q + kComputing * kGroupBytes;
        v = k + kStages * kTileBytes;
        q_full = hopper::shared_address(barriers);
        k_full = q_full + 8;
        v_full = k_full + 8 * kStages;
        k_free = v_full + 8 * kStages;
        v_free = k_free + 8 * kStages;
    }
};
constexpr int kBarriers = 1 + 4 * kStages;

// Where tile `index` of keys or values lies, and the parity of its phase of the barriers.
struct TilePlace {
    int stage, parity;
    __device__ __forceinline__ explicit TilePlace(int index) : stage(index % kStages), parity(index / kStages % 2) {}
};

__device__ __forceinline__ void load_all(const AttentionArguments& arguments, const AttentionShared& shared, int first, int head, int image,
                                         int tiles) {
    hopper::barrier_arrive_expecting(shared.q_full, kComputing * kGroupBytes);
    for (int group = 0; group < kComputing; ++group) {
        load_rows(shared.q + group * kGroupBytes, arguments.q, shared.q_full, first + group * kGroupQueries, head, image);
    }
    for (int tile = 0; tile < tiles; ++tile) {
        const TilePlace at(tile);
        hopper::barrier_wait(shared.k_free + 8 * at.stage, at.parity ^ 1);
        hopper::barrier_arrive_expecting(shared.k_full + 8 * at.stage, kTileBytes);
        load_rows(shared.k + at.stage * kTileBytes, arguments.k, shared.k_full + 8 * at.stage, tile * kKeys, head, image);
        hopper::barrier_wait(shared.v_free + 8 * at.stage, at.parity ^ 1);
        hopper::barrier_arrive_expecting(shared.v_full + 8 * at.stage, kTileBytes);
        load_rows(shared.v + at.stage * kTileBytes, arguments.v, shared.v_full + 8 * at.stage, tile * kKeys, head, image);
    }
}

// 64 queries: a thread has two rows, 8 apart, and of each the columns 2 (lane % 4) and the next one of every 8.
template <typename T, int kHead>
struct QueryGroup {
    float scores[kKeys / 2];      // of one tile
    uint32_t weights[kKeys / 4];  // their exponentials, rounded, two to a register
    float sum[kHead / 2];         // of weights times values, so far
    float top[2], total[2];       // of each row: the largest score so far, this thread's part of the sum of exponentials

    // The scores, of keys of which the first `left` are there, become weights. What was summed before is scaled to the new largest score.
    __device__ __forceinline__ void soften(float factor, int left, int lane) {
        if (left < kKeys) {
#pragma unroll
            for (int i = 0; i < kKeys / 2; ++i) {
                if (i / 4 * 8 + lane % 4 * 2 + i % 2 >= left) scores[i] = -INFINITY;
            }
        }
        float larger[2] = {top[0], top[1]}, shift[2], scale[2];
#pragma unroll
        for (int i = 0; i < kKeys / 2; i += 2) larger[i / 2 % 2] = fmaxf(larger[i / 2 % 2], fmaxf(scores[i], scores[i + 1]));
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
            const float low = exp2_of(fmaf(scores[i], factor, -shift[row])), high = exp2_of(fmaf(scores[i + 1], factor, -shift[row]));
            total[row] += low + high;
            weights[i / 2] = rounded<T>(low, high);
        }
#pragma unroll
        for (int i = 0; i < kHead / 2; ++i) sum[i] *= scale[i / 2 % 2];
    }

    // rows: that there are from this thread's first on.
    __device__ __forceinline__ void store(T* out, int64_t row_stride, int rows) const {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            float all = total[row] + __shfl_xor_sync(~0u, total[row], 1);
            all += __shfl_xor_sync(~0u, all, 2);
            const float share = 1.f / all;
            if (8 * row >= rows) continue;
#pragma unroll
            for (int i = 2 * row; i < kHead / 2; i += 4) {
                *reinterpret_cast<uint32_t*>(out + 8 * row * row_stride + i / 4 * 8) = rounded<T>(sum[i] * share, sum[i + 1] * share);
            }
        }
    }
};

template <typename T, int kHead>
__device__ __forceinline__ void compute(const AttentionArguments& arguments, const AttentionShared& shared, int first, int head, int image,
                                        int tiles) {
    const int group = threadIdx.x / kWarpgroup, lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const uint64_t q = hopper::operand(shared.q + group * kGroupBytes);
    QueryGroup<T, kHead> rows;
    rows.top[0] = rows.top[1] = -INFINITY;
    rows.total[0] = rows.total[1] = 0.f;
#pragma unroll
    for (float& value : rows.sum) value = 0.f;

    const auto multiply = [&](int stage) {
        const uint64_t k = hopper::operand(shared.k + stage * kTileBytes);
        hopper::wgmma_fence();
#pragma unroll
        for (int step = 0; step < (kHead + 15) / 16; ++step) multiply_keys<T>(rows.scores, q + 2 * step, k + 2 * step, step > 0);
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
    // A turn is a barrier that the warpgroup before arrives at and the one whose turn it is waits at.
    const auto begin_turn = [&] { hopper::named_wait(kFirstTurn + group, 2 * kWarpgroup); };
    const auto end_turn = [&](int tile) {
        const bool last = tile == tiles - 1 && group == kComputing - 1;  // nobody waits for it
        if (!last) hopper::named_arrive(kFirstTurn + (group + 1) % kComputing, 2 * kWarpgroup);
    };

    if (group == kComputing - 1) hopper::named_arrive(kFirstTurn, 2 * kWarpgroup);
    hopper::barrier_wait(shared.q_full, 0);
    hopper::barrier_wait(shared.k_full, 0);
    begin_turn();
    multiply(0);
    end_turn(0);
    free(shared.k_free);
    rows.soften(arguments.factor, arguments.keys, lane);
    for (int tile = 1; tile < tiles; ++tile) {
        const TilePlace at(tile), before(tile - 1);
        hopper::barrier_wait(shared.k_full + 8 * at.stage, at.parity);
        hopper::barrier_wait(shared.v_full + 8 * before.stage, before.parity);
        begin_turn();
        add(before.stage);
        multiply(at.stage);
        end_turn(tile);
        free(shared.k_free + 8 * at.stage);
        free(shared.v_free + 8 * before.stage);
        rows.soften(arguments.factor, arguments.keys - tile * kKeys, lane);
    }
    const TilePlace last(tiles - 1);
    hopper::barrier_wait(shared.v_full + 8 * last.stage, last.parity);
    add(last.stage);

    const int row = first + group * kGroupQueries + warp * 16 + lane / 4;
    const int64_t row_stride = int64_t(arguments.heads) * kHead;
    T* out = static_cast<T*>(arguments.out) + (int64_t(image) * arguments.queries + row) * row_stride + head * kHead + lane % 4 * 2;
    rows.store(out, row_stride, arguments.queries - row);
}

#endif

template <typename T, int kHead>
__global__ void __launch_bounds__(kBlockThreads, 1) attention_kernel(const __grid_constant__ AttentionArguments arguments) {
#ifdef SFAST_HOPPER
    extern __shared__ uint8_t buffers[];
    __shared__ uint64_t barriers[kBarriers];
    const AttentionShared shared(buffers, barriers);
    if (threadIdx.x == 0) {
        hopper::barrier_init(shared.q_full, 1);
        for (int stage = 0; stage < kStages; ++stage) {
            hopper::barrier_init(shared.k_full + 8 * stage, 1);
            hopper::barrier_init(shared.v_full + 8 * stage, 1);
            hopper::barrier_init(shared.k_free + 8 * stage, kComputing * 4);
            hopper::barrier_init(shared.v_free + 8 * stage, kComputing * 4);
        }
        hopper::barrier_init_done();
    }
    __syncthreads();
    const int first = blockIdx.x * kBlockQueries, head = blockIdx.y % arguments.heads, image = blockIdx.y / arguments.heads;
    const int tiles = (arguments.keys + kKeys - 1) / kKeys;
    if (threadIdx.x >= kComputing * kWarpgroup) {
        hopper::shrink_registers<kLoadingRegisters>();
        if (threadIdx.x == kComputing * kWarpgroup) load_all(arguments, shared, first, head, image, tiles);
    } else {
        hopper::grow_registers<kComputingRegisters>();
        compute<T, kHead>(arguments, shared, first, head, image, tiles);
    }
#endif
}

}  // namespace
}  // namespace sfast

#endif
