// What every build of the extension answers, whatever kernels are in it.
#include <cuda_runtime.h>

#include "pack.cuh"

namespace {
__global__ void nothing() {}
}  // namespace

SFAST_API int32_t sfast_abi_version(void) { return SFAST_ABI_VERSION; }

SFAST_API const char* sfast_error_name(int32_t error) { return cudaGetErrorName(static_cast<cudaError_t>(error)); }

SFAST_API int32_t sfast_device_status(void) {
    cudaFuncAttributes attributes;
    return sfast::told(cudaFuncGetAttributes(&attributes, nothing));
}
