// The sinusoids by which a timestep or a size becomes a vector: a thread computes the sine and the cosine of one angle,
// as PyTorch would.
#include "pack.cuh"

namespace sfast {
namespace {

constexpr int kThreads = 128;

struct Numbers {
    const void* data;
    int32_t dtype;
    int64_t stride;

    __device__ __forceinline__ float at(int64_t index) const {
        if (dtype == SFAST_INT64) return float(static_cast<const int64_t*>(data)[index * stride]);
        return Vector{data, dtype}.at(index * stride, 0.f);
    }
};

template <typename T>
__global__ void __launch_bounds__(kThreads)
    sinusoids_kernel(const Numbers x, const float* frequencies, T* out, int64_t rows, int64_t count, bool sines_first) {
    const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (i >= rows * count) return;
    const int64_t row = i / count, column = i % count;
    const float angle = x.at(row) * frequencies[column];
    T* const here = out + row * 2 * count + column;
    here[sines_first ? 0 : count] = from_float<T>(sinf(angle));
    here[sines_first ? count : 0] = from_float<T>(cosf(angle));
}

}  // namespace
}  // namespace sfast

// out = [cos(x * frequencies), sin(x * frequencies)], or sines first, in float32 until it is rounded.
//   x            [rows] of x_dtype, any of the element types, x_stride elements apart (0: all are the first)
//   frequencies  [count] float32 dense
//   out          [rows, 2 * count] of dtype, none of the integers, dense; rows * count is less than 2^31
SFAST_API int32_t sfast_sinusoids(const void* x, int32_t x_dtype, int64_t x_stride, const void* frequencies, void* out,
    int64_t rows, int64_t count, int32_t sines_first, int32_t dtype, void* stream) {
    using namespace sfast;
    if (rows < 0 || count < 0 || x_dtype < SFAST_FLOAT32 || x_dtype > SFAST_INT64) return cudaErrorInvalidValue;
    if (rows == 0 || count == 0) return cudaSuccess;
    if (count > INT32_MAX || rows > INT32_MAX / count) return cudaErrorInvalidValue;
    const Numbers numbers{x, x_dtype, x_stride};
    const auto launch = [&](auto* typed) {
        const auto blocks = unsigned((rows * count + kThreads - 1) / kThreads);
        sinusoids_kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
            numbers, static_cast<const float*>(frequencies), typed, rows, count, sines_first != 0);
        return told(cudaGetLastError());
    };
    switch (dtype) {
        case SFAST_FLOAT32: return launch(static_cast<float*>(out));
        case SFAST_FLOAT16: return launch(static_cast<__half*>(out));
        case SFAST_BFLOAT16: return launch(static_cast<__nv_bfloat16*>(out));
        default: return cudaErrorInvalidValue;
    }
}
