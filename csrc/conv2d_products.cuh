// The products of conv2d_tile.cuh by wgmma, of float16 and bfloat16, which are summed in float32.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#include <type_traits>

#include "hopper.cuh"
#include "wgmma_registers.cuh"

#ifdef SFAST_HOPPER

namespace sfast {
namespace {

#define SFAST_WGMMA(SIZE, TYPE, REGISTERS, OPERANDS)                                                             \
    "{\n\t.reg .pred add;\n\tsetp.eq.b32 add, 0, 0;\n\twgmma.mma_async.sync.aligned." SIZE ".f32." TYPE "." TYPE \
    " {" REGISTERS "}, " OPERANDS ";\n\t}"

// sum [64, columns] += pixels [64, 16] @ weight [columns, 16]^T, by a warpgroup. Thread t has of it, for j in 0 ..
// columns / 8, the columns 8 j + 2 (t % 4) and the next one: sum[4 j] and sum[4 j + 1] of row 16 (t / 32) + t % 32 / 4,
// the next two of the row 8 below. The pixels are in shared memory, or in registers, as load_matrices leaves them.
#define SFAST_ADD_128(TYPE)                                                                       \
    asm volatile(SFAST_WGMMA("m64n128k16", TYPE, SFAST_REGISTERS_64, "%64, %65, add, 1, 1, 0, 0") \
        : SFAST_64(SFAST_FLOAT, sum)                                                              \
        : "l"(pixels), "l"(weight))
#define SFAST_ADD_160(TYPE)                                                                       \
    asm volatile(SFAST_WGMMA("m64n160k16", TYPE, SFAST_REGISTERS_80, "%80, %81, add, 1, 1, 0, 0") \
        : SFAST_64(SFAST_FLOAT, sum), SFAST_16(SFAST_FLOAT, sum, 64)                              \
        : "l"(pixels), "l"(weight))
#define SFAST_ADD_160_REGISTERS(TYPE)                                                                           \
    asm volatile(SFAST_WGMMA("m64n160k16", TYPE, SFAST_REGISTERS_80, "{%80, %81, %82, %83}, %84, add, 1, 1, 0") \
        : SFAST_64(SFAST_FLOAT, sum), SFAST_16(SFAST_FLOAT, sum, 64)                                            \
        : "r"(pixels[0]), "r"(pixels[1]), "r"(pixels[2]), "r"(pixels[3]), "l"(weight))

template <typename T>
__device__ __forceinline__ void add_products(float (&sum)[64], uint64_t pixels, uint64_t weight) {
    if constexpr (std::is_same_v<T, __half>)
        SFAST_ADD_128("f16");
    else
        SFAST_ADD_128("bf16");
}
template <typename T>
__device__ __forceinline__ void add_products(float (&sum)[80], uint64_t pixels, uint64_t weight) {
    if constexpr (std::is_same_v<T, __half>)
        SFAST_ADD_160("f16");
    else
        SFAST_ADD_160("bf16");
}
template <typename T>
__device__ __forceinline__ void add_products(float (&sum)[80], const uint32_t (&pixels)[4], uint64_t weight) {
    if constexpr (std::is_same_v<T, __half>)
        SFAST_ADD_160_REGISTERS("f16");
    else
        SFAST_ADD_160_REGISTERS("bf16");
}
#undef SFAST_ADD_160_REGISTERS
#undef SFAST_ADD_160
#undef SFAST_ADD_128
#undef SFAST_WGMMA

}  // namespace
}  // namespace sfast

#endif
