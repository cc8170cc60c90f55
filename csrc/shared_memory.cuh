// What kernels of every architecture say of shared memory. Addresses in it are 32-bit.
#pragma once

#include <cuda_runtime.h>
#include <stdint.h>

namespace sfast {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return uint32_t(__cvta_generic_to_shared(pointer));
}

// Four 8 x 8 matrices of 16-bit elements into the registers of a warp. Lane i gives the address of row i % 8 of matrix
// i / 8 and gets the elements 2 * (i % 4) and the next one of row i / 4 of each: as tensor cores take their operands.
// For compute capability 7.5 and newer.
__device__ __forceinline__ void load_matrices(uint32_t (&words)[4], uint32_t row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
        : "r"(row)
        : "memory");
}

}  // namespace sfast
