// Tensor maps: how TMA is told where a tensor lies and which box of it to bring. Made on the host, handed to a kernel
// as an argument.
#pragma once

#include <cuda_runtime.h>
#include <stdint.h>

#include "pack.cuh"

#if CUDART_VERSION >= 12000
#include <cuda.h>
#include <cudaTypedefs.h>

namespace sfast {

using TensorMapEncoder = PFN_cuTensorMapEncodeTiled_v12000;
using PixelMapEncoder = PFN_cuTensorMapEncodeIm2col_v12000;

// A function of the driver that is there, by its name, so that nothing links against it.
template <typename Function>
cudaError_t driver_function(const char* name, Function* function) {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result);
#else
    const cudaError_t error = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &result);
#endif
    if (error != cudaSuccess) return told(error);
    if (result != cudaDriverEntryPointSuccess || found == nullptr) return cudaErrorInsufficientDriver;
    *function = reinterpret_cast<Function>(found);
    return cudaSuccess;
}

// The functions that make tensor maps: of boxes of a tensor, and of the pixels that a convolution's tap takes of an
// image.
inline cudaError_t tensor_map_encoder(TensorMapEncoder* encoder) {
    return driver_function("cuTensorMapEncodeTiled", encoder);
}
inline cudaError_t pixel_map_encoder(PixelMapEncoder* encoder) {
    return driver_function("cuTensorMapEncodeIm2col", encoder);
}

inline CUtensorMapDataType map_type(int32_t dtype) {
    return dtype == SFAST_FLOAT16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
}

// A map of a tensor of 16-bit elements, dimensions from the innermost, which is dense; `strides` in elements are those
// of the others. Boxes are in the 128-byte swizzle, so they are 64 elements wide, unless another swizzle is named;
// outside the tensor they read zeros.
template <int kRank>
cudaError_t encode_map(TensorMapEncoder encoder, CUtensorMap* map, int32_t dtype, const void* data,
    const int64_t (&sizes)[kRank], const int64_t (&strides)[kRank - 1], const int (&box)[kRank],
    CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B) {
    cuuint64_t dimensions[kRank], stride_bytes[kRank - 1];
    cuuint32_t box_sizes[kRank], steps[kRank];
    for (int i = 0; i < kRank; ++i) {
        dimensions[i] = cuuint64_t(sizes[i]);
        box_sizes[i] = cuuint32_t(box[i]);
        steps[i] = 1;
    }
    for (int i = 0; i < kRank - 1; ++i) stride_bytes[i] = cuuint64_t(strides[i]) * 2;
    const CUresult result = encoder(map, map_type(dtype), kRank, const_cast<void*>(data), dimensions, stride_bytes,
        box_sizes, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

// What a convolution takes of its image, each of height and width.
struct Taps {
    int64_t count;
    int64_t stride, padding;
};

// A map of images [count, height, width, channels] of 16-bit elements, dense, for the taps of a convolution: `pixels`
// pixels of the result from any one on, 64 channels of each, in the 128-byte swizzle. The coordinates are the channel
// and the column, row and image of the pixel that the first tap takes for the first of them; the tap's own place is
// given beside them. What lies outside an image is zero.
inline cudaError_t encode_pixels(PixelMapEncoder encoder, CUtensorMap* map, int32_t dtype, const void* images,
    int64_t count, int64_t height, int64_t width, int64_t channels, const Taps& rows, const Taps& columns, int pixels) {
    const cuuint64_t sizes[] = {cuuint64_t(channels), cuuint64_t(width), cuuint64_t(height), cuuint64_t(count)};
    const cuuint64_t row_bytes = sizes[0] * sizes[1] * 2;
    const cuuint64_t stride_bytes[] = {sizes[0] * 2, row_bytes, row_bytes * sizes[2]};
    const cuuint32_t steps[] = {1, cuuint32_t(columns.stride), cuuint32_t(rows.stride), 1};
    const int first[] = {int(-columns.padding), int(-rows.padding)};
    // counted from the image's end
    const int last[] = {int(columns.padding - columns.count + 1), int(rows.padding - rows.count + 1)};
    const CUresult result = encoder(map, map_type(dtype), 4, const_cast<void*>(images), sizes, stride_bytes, first,
        last, 64, cuuint32_t(pixels), steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace sfast
#endif
