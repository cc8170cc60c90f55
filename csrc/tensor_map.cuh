// Tensor maps: how TMA is told where a tensor lies and which box of it to bring. Made on the host, handed to a kernel as an argument.
#pragma once

#include <cuda_runtime.h>
#include <stdint.h>

#include "pack.cuh"

#if CUDART_VERSION >= 12000
#include <cuda.h>
#include <cudaTypedefs.h>

namespace sfast {

using TensorMapEncoder = PFN_cuTensorMapEncodeTiled_v12000;

// The driver's function that makes tensor maps. Asked of the driver that is there, so that nothing links against it.
inline cudaError_t tensor_map_encoder(TensorMapEncoder* encoder) {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
#else
    const cudaError_t error = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &result);
#endif
    if (error != cudaSuccess) return told(error);
    if (result != cudaDriverEntryPointSuccess || found == nullptr) return cudaErrorInsufficientDriver;
    *encoder = reinterpret_cast<TensorMapEncoder>(found);
    return cudaSuccess;
}

// A map of a tensor of 16-bit elements, dimensions from the innermost, which is dense; `strides` in elements are those of the others. Boxes
// are read in the 128-byte swizzle, so they are 64 elements wide; outside the tensor they read zeros.
template <int kRank>
cudaError_t encode_map(TensorMapEncoder encoder, CUtensorMap* map, int32_t dtype, const void* data, const int64_t (&sizes)[kRank],
                       const int64_t (&strides)[kRank - 1], const int (&box)[kRank]) {
    cuuint64_t dimensions[kRank], stride_bytes[kRank - 1];
    cuuint32_t box_sizes[kRank], steps[kRank];
    for (int i = 0; i < kRank; ++i) {
        dimensions[i] = cuuint64_t(sizes[i]);
        box_sizes[i] = cuuint32_t(box[i]);
        steps[i] = 1;
    }
    for (int i = 0; i < kRank - 1; ++i) stride_bytes[i] = cuuint64_t(strides[i]) * 2;
    const CUtensorMapDataType type = dtype == SFAST_FLOAT16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    const CUresult result =
        encoder(map, type, kRank, const_cast<void*>(data), dimensions, stride_bytes, box_sizes, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace sfast
#endif
