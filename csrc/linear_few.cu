// A linear layer of few rows: the embeddings of a timestep, and all that is projected from them. The weight is read
// once, and that is what it takes.
//
// A warp computes some columns of the result for all rows: its lanes share the depth, 16 bytes each, and add their sums
// up at the end. x is read from L1, where it stays. No atomics and sums in a fixed order: equal inputs give equal bits.
#include "pack.cuh"

namespace sfast {
namespace {

constexpr int kMostRows = 8;
constexpr int64_t kMostDepth = 1 << 24;
constexpr int kColumns = 2;  // of a warp
constexpr int kWarps = 4, kThreads = kWarps * 32;
constexpr int kSteps = 5;  // loads of a lane under way for each column: at a depth of 1280 all there are

template <typename T>
struct LinearArguments {
    const T *x, *weight, *bias, *residual;  // the last two may be null
    T* out;
    int64_t columns;
    int rows, depth, act;
};

__device__ __forceinline__ float activated(float value, int act) {
    if (act == SFAST_ACT_SILU) return __fdividef(value, 1.f + __expf(-value));
    return act == SFAST_ACT_RELU && value < 0.f ? 0.f : value;  // NaN stays
}

// kRows: as many as there are, or more: those beyond are computed like the last one, and not written.
template <typename T, int kRows>
__global__ void __launch_bounds__(kThreads) linear_few_kernel(const LinearArguments<T> arguments) {
    constexpr int kVec = kFullPack<T>;
    const int lane = threadIdx.x % 32;
    const int64_t first = (int64_t(blockIdx.x) * kWarps + threadIdx.x / 32) * kColumns;
    if (first >= arguments.columns) return;
    const T *weights[kColumns], *rows[kRows];
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
        weights[c] = arguments.weight + min(first + c, arguments.columns - 1) * int64_t(arguments.depth);
#pragma unroll
    for (int r = 0; r < kRows; ++r) rows[r] = arguments.x + min(r, arguments.rows - 1) * arguments.depth;
    float sums[kRows][kColumns] = {};
    for (int start = lane * kVec; start < arguments.depth; start += kSteps * 32 * kVec) {
        Pack<T, kVec> loaded[kSteps][kColumns];
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
            const int at = start + step * 32 * kVec;
#pragma unroll
            for (int c = 0; c < kColumns; ++c) {
                loaded[step][c] = at < arguments.depth ? __ldcs(reinterpret_cast<const Pack<T, kVec>*>(weights[c] + at))
                                                       : Pack<T, kVec>{};
            }
        }
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
            const int at = start + step * 32 * kVec;
            if (at >= arguments.depth) break;
            float factors[kColumns][kVec], values[kVec];
#pragma unroll
            for (int c = 0; c < kColumns; ++c) unpack<T, kVec>(loaded[step][c], factors[c]);
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
                unpack<T, kVec>(load_pack<T, kVec>(rows[r] + at), values);
#pragma unroll
                for (int c = 0; c < kColumns; ++c) {
#pragma unroll
                    for (int i = 0; i < kVec; ++i) sums[r][c] = fmaf(values[i], factors[c][i], sums[r][c]);
                }
            }
        }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
            float value = warp_sum(sums[r][c]);
            const int64_t column = first + c, at = r * arguments.columns + column;
            if (lane != r * kColumns + c || r >= arguments.rows || column >= arguments.columns) continue;
            if (arguments.bias != nullptr) value += to_float(arguments.bias[column]);
            if (arguments.residual != nullptr) value += to_float(arguments.residual[at]);
            arguments.out[at] = from_float<T>(activated(value, arguments.act));
        }
    }
}

template <typename T>
cudaError_t linear_typed(const void* x, const void* weight, const void* bias, const void* residual, void* out,
    int64_t rows, int64_t columns, int64_t depth, int32_t act, void* stream) {
    const auto input = [](const void* pointer) { return static_cast<const T*>(pointer); };
    const LinearArguments<T> arguments{input(x), input(weight), input(bias), input(residual), static_cast<T*>(out),
        columns, int(rows), int(depth), int(act)};
    const auto kernel = rows <= 1   ? linear_few_kernel<T, 1>
                        : rows <= 2 ? linear_few_kernel<T, 2>
                        : rows <= 4 ? linear_few_kernel<T, 4>
                                    : linear_few_kernel<T, kMostRows>;
    constexpr int kBlockColumns = kWarps * kColumns;
    const int64_t blocks = (columns + kBlockColumns - 1) / kBlockColumns;
    if (blocks > INT32_MAX) return cudaErrorInvalidValue;
    kernel<<<unsigned(blocks), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(arguments);
    return told(cudaGetLastError());
}

}  // namespace
}  // namespace sfast

// out = act(x @ weight^T + bias + residual), in float32 until it is rounded once; bits don't differ from run to run.
//   x         [rows, depth] dense, 8 rows at most, depth a multiple of 8, 2^24 at most; aligned to 16 bytes
//   weight    [columns, depth] dense; 16 bytes
//   bias      [columns] or null
//   residual  as out, or null
//   out       [rows, columns] dense
// All of `dtype`, SFAST_FLOAT16 or SFAST_BFLOAT16; act is none, SiLU or ReLU.
SFAST_API int32_t sfast_linear_few(const void* x, const void* weight, const void* bias, const void* residual, void* out,
    int64_t rows, int64_t columns, int64_t depth, int32_t act, int32_t dtype, void* stream) {
    using namespace sfast;
    if (rows < 0 || rows > kMostRows || columns < 0 || depth <= 0 || depth > kMostDepth ||
        depth % kFullPack<__half> != 0)
        return cudaErrorInvalidValue;
    if (act < SFAST_ACT_NONE || act > SFAST_ACT_RELU) return cudaErrorInvalidValue;
    if (rows == 0 || columns == 0) return cudaSuccess;
    if (!is_aligned(x) || !is_aligned(weight)) return cudaErrorMisalignedAddress;
    switch (dtype) {
        case SFAST_FLOAT16:
            return linear_typed<__half>(x, weight, bias, residual, out, rows, columns, depth, act, stream);
        case SFAST_BFLOAT16:
            return linear_typed<__nv_bfloat16>(x, weight, bias, residual, out, rows, columns, depth, act, stream);
        default: return cudaErrorInvalidValue;
    }
}
