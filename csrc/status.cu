// What every build of the extension answers, whatever kernels are in it.
#include <cuda_runtime.h>

#include "pack.cuh"

namespace {
__global__ void nothing() {}
}  // namespace

// The name of a cudaError_t.
SFAST_API const char* sfast_error_name(int32_t error) { return cudaGetErrorName(static_cast<cudaError_t>(error)); }

// cudaSuccess where this build has code for the current device and the driver is new enough for it. Runs nothing.
SFAST_API int32_t sfast_device_status() {
    cudaFuncAttributes attributes;
    return sfast::told(cudaFuncGetAttributes(&attributes, nothing));
}
