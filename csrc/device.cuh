// What the host's side of every kernel asks of CUDA.
#pragma once

#include <cuda_runtime.h>

namespace sfast {

// An error that is told to the caller, so not to be found by the next launch.
inline cudaError_t told(cudaError_t error) {
    if (error != cudaSuccess) cudaGetLastError();
    return error;
}

// cudaSuccess where `kernel` has code for the current device. It must have static shared memory, and be empty when
// compiled for an architecture that isn't its own.
template <typename Kernel>
cudaError_t has_code(Kernel* kernel) {
    cudaFuncAttributes attributes;
    const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
    if (error != cudaSuccess) return told(error);
    return attributes.sharedSizeBytes == 0 ? cudaErrorNoKernelImageForDevice : cudaSuccess;
}

// cudaSuccess where the current device's code of `kernel` was made for compute capability `oldest` (90: 9.0) or newer.
// The driver may have made it of PTX for an older one, for which the kernel is empty.
template <typename Kernel>
cudaError_t made_for(Kernel* kernel, int oldest) {
    cudaFuncAttributes attributes;
    const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
    if (error != cudaSuccess) return told(error);
    return attributes.ptxVersion >= oldest ? cudaSuccess : cudaErrorNoKernelImageForDevice;
}

// How many the current device has.
inline cudaError_t multiprocessors(int* count) {
    int device = 0;
    const cudaError_t error = cudaGetDevice(&device);
    return told(error != cudaSuccess ? error : cudaDeviceGetAttribute(count, cudaDevAttrMultiProcessorCount, device));
}

}  // namespace sfast
