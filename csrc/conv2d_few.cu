// A 3x3 convolution to few channels, the last one of a UNet or a decoder: the image is read 1.4 times, and what is
// written is next to nothing.
//
// Libraries pad the result to the 32 or more channels of a tile, and the weight with it. Here a tile of tensor core
// products is 16 pixels of a row by 8 channels (mma m16n8k16). A block has 8 x 16 pixels; it brings them and their
// neighbours into shared memory, 64 channels at a time, the next 64 while it multiplies. A warp has two rows: of its
// pixels' matrices, loaded once for each shift along the row, each serves the up to two rows of the result that it is a
// neighbour of.
//
// No atomics and sums in a fixed order: equal inputs give equal bits.
#include "pack.cuh"
#include "shared_memory.cuh"

namespace sfast {
namespace {

constexpr int kMostChannels = 8;  // of the result
constexpr int kDepth = 64;        // channels of the image at a time: rows of 128 bytes in shared memory
constexpr int kUnits = 8;         // of 16 bytes, in such a row
constexpr int kWarps = 4, kThreads = kWarps * 32;
constexpr int kWarpRows = 2;  // of the result
constexpr int kRows = kWarps * kWarpRows, kColumns = 16;
constexpr int kWideColumns = kColumns + 2, kPixels = (kRows + 2) * kWideColumns;  // with neighbours
constexpr int kTaps = 3;
constexpr int kWeights = kTaps * kTaps * kMostChannels;  // rows of the weight
constexpr int kStages = 2;
constexpr int kStageBytes = (kPixels + kWeights) * kUnits * 16;

struct FewArguments {
    const void *x, *weight, *bias;
    void* out;
    int height, width, c, channels;
    int tiles_across;
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800

// Where 16 bytes lie: exchanged by their row's number, so that neighbouring rows' are in different banks.
__device__ __forceinline__ uint32_t place(uint32_t buffer, int row, int unit) {
    return buffer + (row * kUnits + (unit ^ (row % kUnits))) * 16;
}

// 16 bytes from memory, or zeros.
__device__ __forceinline__ void bring(uint32_t target, const void* source, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(there ? 16 : 0)
        : "memory");
}

// sum [16, 8] += pixels [16, 16] @ weight [8, 16]^T
#define SFAST_MMA(TYPE)                                                        \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE                 \
        ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])               \
        : "r"(pixels[0]), "r"(pixels[1]), "r"(pixels[2]), "r"(pixels[3]), "r"(first), "r"(second))
__device__ __forceinline__ void multiply(
    float (&sum)[4], const uint32_t (&pixels)[4], uint32_t first, uint32_t second, __half) {
    SFAST_MMA("f16");
}
__device__ __forceinline__ void multiply(
    float (&sum)[4], const uint32_t (&pixels)[4], uint32_t first, uint32_t second, __nv_bfloat16) {
    SFAST_MMA("bf16");
}
#undef SFAST_MMA

// The block's pixels and the weight of 64 channels from `depth` on.
template <typename T>
__device__ __forceinline__ void bring_stage(
    const FewArguments& arguments, uint32_t buffer, int first_row, int first_column, int depth) {
    const T* const image = static_cast<const T*>(arguments.x) +
                           int64_t(blockIdx.y) * arguments.height * arguments.width * arguments.c + depth;
#pragma unroll 4
    for (int i = threadIdx.x; i < kPixels * kUnits; i += kThreads) {
        const int pixel = i / kUnits, unit = i % kUnits;
        const int row = first_row + pixel / kWideColumns - 1, column = first_column + pixel % kWideColumns - 1;
        const bool there = row >= 0 && row < arguments.height && column >= 0 && column < arguments.width;
        const int64_t at = there ? int64_t(row) * arguments.width + column : 0;
        bring(place(buffer, pixel, unit), image + at * arguments.c + unit * 8, there);
    }
    const T* const weight = static_cast<const T*>(arguments.weight) + depth;
    const uint32_t weights = buffer + kPixels * kUnits * 16;
#pragma unroll 2
    for (int i = threadIdx.x; i < kWeights * kUnits; i += kThreads) {
        const int tap = i / kUnits / kMostChannels, channel = i / kUnits % kMostChannels, unit = i % kUnits;
        const bool there = channel < arguments.channels;
        const int64_t at = there ? channel * kTaps * kTaps + tap : 0;
        bring(place(weights, i / kUnits, unit), weight + at * arguments.c + unit * 8, there);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// A warp's two rows of the result, and the products of 64 channels with all taps.
template <typename T>
__device__ __forceinline__ void multiply_stage(float (&sums)[kWarpRows][4], uint32_t buffer, int warp, int lane) {
    const uint32_t weights = buffer + kPixels * kUnits * 16;
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // of the 64 channels: matrices of 32 come at a time
        uint32_t factors[kTaps * kTaps][4];
#pragma unroll
        for (int tap = 0; tap < kTaps * kTaps; ++tap) {
            load_matrices(factors[tap], place(weights, tap * kMostChannels + lane % 8, half * 4 + lane / 8));
        }
#pragma unroll
        for (int step = 0; step < 2; ++step) {
#pragma unroll
            for (int across = 0; across < kTaps; ++across) {
#pragma unroll
                for (int line = 0; line < kWarpRows + 2; ++line) {
                    uint32_t pixels[4];
                    const int pixel = (warp * kWarpRows + line) * kWideColumns + across + lane % 16;
                    load_matrices(pixels, place(buffer, pixel, half * 4 + step * 2 + lane / 16));
#pragma unroll
                    for (int row = 0; row < kWarpRows; ++row) {
                        const int down = line - row;
                        if (down < 0 || down >= kTaps) continue;
                        const uint32_t (&factor)[4] = factors[down * kTaps + across];
                        multiply(sums[row], pixels, factor[2 * step], factor[2 * step + 1], T{});
                    }
                }
            }
        }
    }
}

#endif

template <typename T>
__global__ void __launch_bounds__(kThreads, 3) conv2d_few_kernel(const FewArguments arguments) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    extern __shared__ uint4 memory[];
    const uint32_t buffers = shared_address(memory);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int first_row = int(blockIdx.x) / arguments.tiles_across * kRows,
              first_column = int(blockIdx.x) % arguments.tiles_across * kColumns;
    const int steps = arguments.c / kDepth;
    float sums[kWarpRows][4] = {};
    bring_stage<T>(arguments, buffers, first_row, first_column, 0);
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        if (step + 1 < steps) {
            bring_stage<T>(
                arguments, buffers + (step + 1) % kStages * kStageBytes, first_row, first_column, (step + 1) * kDepth);
            asm volatile("cp.async.wait_group 1;" ::: "memory");
        } else {
            asm volatile("cp.async.wait_group 0;" ::: "memory");
        }
        __syncthreads();
        multiply_stage<T>(sums, buffers + step % kStages * kStageBytes, warp, lane);
        __syncthreads();  // the buffer is brought anew
    }
    // A thread has, of each row, two channels of the pixels lane / 4 and 8 further on.
    const int channel = lane % 4 * 2;
#pragma unroll
    for (int row = 0; row < kWarpRows; ++row) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int y = first_row + warp * kWarpRows + row, x = first_column + lane / 4 + i / 2 * 8,
                      own = channel + i % 2;
            if (y >= arguments.height || x >= arguments.width || own >= arguments.channels) continue;
            const float shift = arguments.bias == nullptr ? 0.f : to_float(static_cast<const T*>(arguments.bias)[own]);
            const int64_t pixel = (int64_t(blockIdx.y) * arguments.height + y) * arguments.width + x;
            static_cast<T*>(arguments.out)[pixel * arguments.channels + own] = from_float<T>(sums[row][i] + shift);
        }
    }
#endif
}

template <typename T>
cudaError_t launch_few(const FewArguments& arguments, int images, cudaStream_t stream) {
    const auto kernel = conv2d_few_kernel<T>;
    constexpr int kSharedBytes = kStages * kStageBytes;
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
    if (error != cudaSuccess) return told(error);
    const int64_t tiles = int64_t(arguments.tiles_across) * ((arguments.height + kRows - 1) / kRows);
    if (tiles > INT32_MAX) return cudaErrorInvalidValue;
    kernel<<<dim3(unsigned(tiles), unsigned(images)), kThreads, kSharedBytes, stream>>>(arguments);
    return told(cudaGetLastError());
}

}  // namespace
}  // namespace sfast

// cudaSuccess where sfast_conv2d_few can run on the current device: compute capability 8.0 and newer, and a build for
// one of these. Runs nothing.
SFAST_API int32_t sfast_conv2d_few_status() {
    using namespace sfast;
    return made_for(conv2d_few_kernel<__half>, 80);
}

// out = conv2d(x, weight) + bias, 3 x 3, stride 1, padding 1, in float32 until it is rounded once; bits don't differ
// from run to run.
//   x        [n, height, width, c] dense, c a multiple of 64; aligned to 16 bytes
//   weight   [channels, 3, 3, c] dense, channels 8 at most; aligned to 16 bytes
//   bias     [channels] or null
//   out      [n, height, width, channels] dense
// All of `dtype`, SFAST_FLOAT16 or SFAST_BFLOAT16.
SFAST_API int32_t sfast_conv2d_few(const void* x, const void* weight, const void* bias, void* out, int64_t n,
    int64_t height, int64_t width, int64_t c, int64_t channels, int32_t dtype, void* stream) {
    using namespace sfast;
    if (n < 0 || n > 65535 || height < 0 || width < 0 || height > INT32_MAX - kRows || width > INT32_MAX - kColumns)
        return cudaErrorInvalidValue;
    if (c <= 0 || c > INT32_MAX || c % kDepth != 0 || channels <= 0 || channels > kMostChannels)
        return cudaErrorInvalidValue;
    if (dtype != SFAST_FLOAT16 && dtype != SFAST_BFLOAT16) return cudaErrorInvalidValue;
    if (n == 0 || height == 0 || width == 0) return cudaSuccess;
    if (!is_aligned(x) || !is_aligned(weight)) return cudaErrorMisalignedAddress;
    const FewArguments arguments{
        x, weight, bias, out, int(height), int(width), int(c), int(channels), int((width + kColumns - 1) / kColumns)};
    auto* const queue = static_cast<cudaStream_t>(stream);
    if (dtype == SFAST_FLOAT16) return launch_few<__half>(arguments, int(n), queue);
    return launch_few<__nv_bfloat16>(arguments, int(n), queue);
}
