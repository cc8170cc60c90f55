// The residual addition and the LayerNorm behind it, in one pass over the tokens.
//
//     s = x + x_bias + residual, rounded to the type of x        n = (s - mean(s)) / sqrt(var(s) + eps) * weight + bias
//
// What is written beside n is x + x_bias + residual + sum_bias: a linear layer whose result it will be added to needs
// no bias then.
//
// A row is read once, stays in the registers of its threads, and is written once (twice with a residual: s and n). All
// arithmetic is float32; the variance is taken from deviations, not from squares. No atomics and sums in a fixed order:
// equal inputs give equal bits.
//
// A row is 1 to 5 packs of 16 bytes for each of a power of two of threads: 320, 640 and 1280 16-bit elements are 5 for
// each of 8, 16 and 32. So no thread has to ask whether its packs are there, which would be a third of the
// instructions.
#include "pack.cuh"

namespace sfast {
namespace {

constexpr int kBlockThreads = 128;  // few, so that the rows spread evenly over the multiprocessors
constexpr int kMostThreads = 512;   // of a row
constexpr int kMostPacks = 5;       // of a thread

template <typename T>
struct NormArguments {
    const T *x, *residual, *x_bias, *sum_bias, *weight, *bias;  // all but x may be null
    T *sum, *out;
    int64_t rows;
    int width;  // threads to a row
    float eps;
};

// The sum of `value` over the threads of a row; every thread of the block takes part.
__device__ __forceinline__ float row_sum(float value, int width, float* partial) {
    const int lanes = width < 32 ? width : 32;
    for (int offset = lanes / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(~0u, value, offset);
    if (width <= 32) return value;
    const int warps = width / 32, warp = threadIdx.x / 32, first = warp & -warps;
    __syncthreads();  // the sum before has been read
    if (threadIdx.x % 32 == 0) partial[warp] = value;
    __syncthreads();
    value = 0.f;
    for (int other = first; other < first + warps; ++other) value += partial[other];
    return value;
}

template <typename T, int kVec>
__device__ __forceinline__ Pack<T, kVec> filled(float value) {
    float values[kVec];
#pragma unroll
    for (int i = 0; i < kVec; ++i) values[i] = value;
    return pack<T, kVec>(values);
}

// kSumBias: whether there is a sum_bias. Asked at run time it costs every sum 0.4 of its 6 us (H100, 2048 x 1280).
template <typename T, int kPacks, bool kSumBias>
__global__ void __launch_bounds__(kMostThreads) add_layer_norm_kernel(const NormArguments<T> arguments) {
    constexpr int kVec = kFullPack<T>;
    using Packs = Pack<T, kVec>[kPacks];
    __shared__ float partial[kMostThreads / 32];
    const int width = arguments.width, lane = threadIdx.x & (width - 1);
    // The last block's spare threads do the last row again.
    const int64_t row = min(int64_t(blockIdx.x) * (blockDim.x / width) + threadIdx.x / width, arguments.rows - 1);
    const int64_t start = row * (int64_t(width) * kPacks * kVec) + lane * kVec;
    const int step = width * kVec;
    const auto load = [&](Packs& packs, const T* from, int64_t offset, float absent) {
        if (from != nullptr) {
#pragma unroll
            for (int i = 0; i < kPacks; ++i) packs[i] = load_pack<T, kVec>(from + offset + i * step);
        } else {
            const Pack<T, kVec> fill = filled<T, kVec>(absent);
#pragma unroll
            for (int i = 0; i < kPacks; ++i) packs[i] = fill;
        }
    };

    Packs x, residual, x_bias, weight, bias;
    load(x, arguments.x, start, 0.f);
    load(residual, arguments.residual, start, 0.f);
    load(x_bias, arguments.x_bias, lane * kVec, 0.f);

    float values[kPacks][kVec], other[kVec];
#pragma unroll
    for (int i = 0; i < kPacks; ++i) unpack<T, kVec>(x[i], values[i]);
    const auto add = [&](const Packs& packs) {
#pragma unroll
        for (int i = 0; i < kPacks; ++i) {
            unpack<T, kVec>(packs[i], other);
#pragma unroll
            for (int j = 0; j < kVec; ++j) values[i][j] += other[j];
        }
    };
    if (arguments.x_bias != nullptr) add(x_bias);
    if (arguments.residual != nullptr) {
        add(residual);
        Packs sum_bias;
        if constexpr (kSumBias) load(sum_bias, arguments.sum_bias, lane * kVec, 0.f);
#pragma unroll
        for (int i = 0; i < kPacks; ++i) {
            const Pack<T, kVec> rounded = pack<T, kVec>(values[i]);
            Pack<T, kVec> written = rounded;
            if constexpr (kSumBias) {
                unpack<T, kVec>(sum_bias[i], other);
#pragma unroll
                for (int j = 0; j < kVec; ++j) other[j] += values[i][j];
                written = pack<T, kVec>(other);
            }
            store_pack<T, kVec>(arguments.sum + start + i * step, written);
            unpack<T, kVec>(rounded, values[i]);  // what is normalised is rounded, as the sum by itself would be
        }
    }
    // Early enough to arrive during the reductions, late enough to take the registers of x and the residual.
    load(weight, arguments.weight, lane * kVec, 1.f);
    load(bias, arguments.bias, lane * kVec, 0.f);
    float total = 0.f, squares = 0.f;
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
#pragma unroll
        for (int j = 0; j < kVec; ++j) total += values[i][j];
    }
    const float share = 1.f / float(step * kPacks);
    const float mean = row_sum(total, width, partial) * share;
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
#pragma unroll
        for (int j = 0; j < kVec; ++j) {
            values[i][j] -= mean;
            squares += values[i][j] * values[i][j];
        }
    }
    const float scale = rsqrtf(row_sum(squares, width, partial) * share + arguments.eps);
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
        float slope[kVec];
        unpack<T, kVec>(weight[i], slope);
        unpack<T, kVec>(bias[i], other);
#pragma unroll
        for (int j = 0; j < kVec; ++j) values[i][j] = fmaf(values[i][j] * scale, slope[j], other[j]);
        store_pack<T, kVec>(arguments.out + start + i * step, pack<T, kVec>(values[i]));
    }
}

template <typename T, bool kSumBias>
cudaError_t launch_norm(NormArguments<T> arguments, int64_t channels, cudaStream_t stream) {
    const void* const tensors[] = {arguments.x, arguments.residual, arguments.x_bias, arguments.sum_bias,
        arguments.weight, arguments.bias, arguments.sum, arguments.out};
    for (const void* tensor : tensors) {
        if (!is_aligned(tensor)) return cudaErrorMisalignedAddress;
    }
    int64_t packs = channels / kFullPack<T>, width = 1;
    if (channels % kFullPack<T> != 0) return cudaErrorInvalidValue;
    while (packs > kMostPacks && packs % 2 == 0) packs /= 2, width *= 2;
    if (packs > kMostPacks || width > kMostThreads) return cudaErrorInvalidValue;
    arguments.width = int(width);
    const int threads = width > kBlockThreads ? int(width) : kBlockThreads;
    const int64_t block_rows = threads / width, blocks = (arguments.rows + block_rows - 1) / block_rows;
    if (blocks > INT32_MAX) return cudaErrorInvalidValue;
    void (*const kernels[kMostPacks])(NormArguments<T>) = {add_layer_norm_kernel<T, 1, kSumBias>,
        add_layer_norm_kernel<T, 2, kSumBias>, add_layer_norm_kernel<T, 3, kSumBias>,
        add_layer_norm_kernel<T, 4, kSumBias>, add_layer_norm_kernel<T, 5, kSumBias>};
    kernels[packs - 1]<<<unsigned(blocks), unsigned(threads), 0, stream>>>(arguments);
    return told(cudaGetLastError());
}

template <typename T>
cudaError_t norm_typed(const void* x, const void* residual, const void* x_bias, const void* sum_bias,
    const void* weight, const void* bias, void* sum, void* out, int64_t rows, int64_t channels, float eps,
    void* stream) {
    const auto input = [](const void* pointer) { return static_cast<const T*>(pointer); };
    const NormArguments<T> arguments{input(x), input(residual), input(x_bias), input(sum_bias), input(weight),
        input(bias), static_cast<T*>(sum), static_cast<T*>(out), rows, 0, eps};
    const auto launch = sum_bias == nullptr ? launch_norm<T, false> : launch_norm<T, true>;
    return launch(arguments, channels, static_cast<cudaStream_t>(stream));
}

}  // namespace
}  // namespace sfast

// out = n, sum = what is written beside it.
//   x, out               [rows, channels] dense
//   residual, sum        the same, or both null: then x is what is normalised
//   x_bias, sum_bias     [channels] or null, only with a residual
//   weight, bias         [channels] or null
// All of `dtype` and aligned to 16 bytes. A row is 1 to 5 times a power of two, 512 at most, of 16 bytes.
SFAST_API int32_t sfast_add_layer_norm(const void* x, const void* residual, const void* x_bias, const void* sum_bias,
    const void* weight, const void* bias, void* sum, void* out, int64_t rows, int64_t channels, float eps,
    int32_t dtype, void* stream) {
    using namespace sfast;
    if (rows < 0 || channels < 0) return cudaErrorInvalidValue;
    if (rows == 0 || channels == 0) return cudaSuccess;  // what is empty may lie nowhere
    if ((residual == nullptr) != (sum == nullptr)) return cudaErrorInvalidValue;
    if ((x_bias != nullptr || sum_bias != nullptr) && residual == nullptr) return cudaErrorInvalidValue;
    const auto typed = [&](auto norm) {
        return norm(x, residual, x_bias, sum_bias, weight, bias, sum, out, rows, channels, eps, stream);
    };
    switch (dtype) {
        case SFAST_FLOAT32: return typed(norm_typed<float>);
        case SFAST_FLOAT16: return typed(norm_typed<__half>);
        case SFAST_BFLOAT16: return typed(norm_typed<__nv_bfloat16>);
        default: return cudaErrorInvalidValue;
    }
}
