// The weights of a convolution of a doubled image, for its phases (conv2d_tile.cuh): sums of the 3 x 3 taps.
#pragma once

#include "pack.cuh"

namespace sfast {
namespace {

constexpr int kPhaseThreads = 128;

// `weight` [outputs, 3, 3, c] to `phases` [2 x 2 phases, outputs, 2, 2, c], 8 channels of an output to a thread. Of a
// dimension the first phase takes the taps 0 and 1 + 2, the second 0 + 1 and 2; added in float32 and rounded once.
template <typename T>
__global__ void __launch_bounds__(kPhaseThreads)
    phase_weights_kernel(const T* weight, T* phases, int64_t outputs, int packs) {
    constexpr int kVec = kFullPack<T>;
    const int64_t index = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (index >= outputs * packs) return;
    const int64_t output = index / packs, channels = int64_t(packs) * kVec, channel = index % packs * kVec;
    const T* const from = weight + output * 9 * channels + channel;
    Pack<T, kVec> taps[9];  // all loads before the first sum
#pragma unroll
    for (int tap = 0; tap < 9; ++tap) taps[tap] = load_pack<T, kVec>(from + tap * channels);
#pragma unroll
    for (int phase = 0; phase < 4; ++phase) {
#pragma unroll
        for (int tap = 0; tap < 4; ++tap) {
            // Which rows and columns of the taps: [0, 0] and [1, 2] of the first phase, [0, 1] and [2, 2] of the
            // second.
            const int row = tap / 2 == 0 ? 0 : 2 - (phase / 2 == 0), last_row = tap / 2 == 0 ? phase / 2 : 2;
            const int column = tap % 2 == 0 ? 0 : 2 - (phase % 2 == 0), last_column = tap % 2 == 0 ? phase % 2 : 2;
            float sum[kVec] = {};
#pragma unroll
            for (int r = row; r <= last_row; ++r) {
#pragma unroll
                for (int s = column; s <= last_column; ++s) {
                    float values[kVec];
                    unpack<T, kVec>(taps[3 * r + s], values);
#pragma unroll
                    for (int i = 0; i < kVec; ++i) sum[i] += values[i];
                }
            }
            store_pack<T, kVec>(
                phases + ((phase * outputs + output) * 4 + tap) * channels + channel, pack<T, kVec>(sum));
        }
    }
}

template <typename T>
cudaError_t sum_phases(const void* weight, void* phases, int64_t outputs, int64_t c, cudaStream_t stream) {
    const int64_t packs = c / kFullPack<T>, blocks = (outputs * packs + kPhaseThreads - 1) / kPhaseThreads;
    if (blocks > INT32_MAX) return cudaErrorInvalidValue;
    phase_weights_kernel<T><<<unsigned(blocks), kPhaseThreads, 0, stream>>>(
        static_cast<const T*>(weight), static_cast<T*>(phases), outputs, int(packs));
    return told(cudaGetLastError());
}

// Launches it; c is a multiple of 8.
inline cudaError_t sum_phases(
    const void* weight, void* phases, int64_t outputs, int64_t c, int32_t dtype, cudaStream_t stream) {
    if (dtype == SFAST_FLOAT16) return sum_phases<__half>(weight, phases, outputs, c, stream);
    return sum_phases<__nv_bfloat16>(weight, phases, outputs, c, stream);
}

}  // namespace
}  // namespace sfast
