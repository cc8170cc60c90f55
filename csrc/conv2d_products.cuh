// The products of conv2d_tile.cuh by wgmma, of float16 and bfloat16, which are summed in float32.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#include <type_traits>

#include "hopper.cuh"

#ifdef SFAST_HOPPER

namespace sfast {
namespace {

#define SFAST_SUM_8(i)                                                                                      \
    "+f"(sum[i]), "+f"(sum[i + 1]), "+f"(sum[i + 2]), "+f"(sum[i + 3]), "+f"(sum[i + 4]), "+f"(sum[i + 5]), \
        "+f"(sum[i + 6]), "+f"(sum[i + 7])
#define SFAST_SUM_64                                                                                    \
    SFAST_SUM_8(0), SFAST_SUM_8(8), SFAST_SUM_8(16), SFAST_SUM_8(24), SFAST_SUM_8(32), SFAST_SUM_8(40), \
        SFAST_SUM_8(48), SFAST_SUM_8(56)
#define SFAST_REGISTERS_64                                                             \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SFAST_REGISTERS_80 \
    SFAST_REGISTERS_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define SFAST_WGMMA(SIZE, TYPE, REGISTERS, OPERANDS)                                                             \
    "{\n\t.reg .pred add;\n\tsetp.eq.b32 add, 0, 0;\n\twgmma.mma_async.sync.aligned." SIZE ".f32." TYPE "." TYPE \
    " {" REGISTERS "}, " OPERANDS ";\n\t}"

// sum [64, columns] += pixels [64, 16] @ weight [columns, 16]^T, by a warpgroup. Thread t has of it, for j in 0 ..
// columns / 8, the columns 8 j + 2 (t % 4) and the next one: sum[4 j] and sum[4 j + 1] of row 16 (t / 32) + t % 32 / 4,
// the next two of the row 8 below. The pixels are in shared memory, or in registers, as load_matrices leaves them.
#define SFAST_ADD_128(TYPE)                                                                       \
    asm volatile(SFAST_WGMMA("m64n128k16", TYPE, SFAST_REGISTERS_64, "%64, %65, add, 1, 1, 0, 0") \
        : SFAST_SUM_64                                                                            \
        : "l"(pixels), "l"(weight))
#define SFAST_ADD_160(TYPE)                                                                       \
    asm volatile(SFAST_WGMMA("m64n160k16", TYPE, SFAST_REGISTERS_80, "%80, %81, add, 1, 1, 0, 0") \
        : SFAST_SUM_64, SFAST_SUM_8(64), SFAST_SUM_8(72)                                          \
        : "l"(pixels), "l"(weight))
#define SFAST_ADD_160_REGISTERS(TYPE)                                                                           \
    asm volatile(SFAST_WGMMA("m64n160k16", TYPE, SFAST_REGISTERS_80, "{%80, %81, %82, %83}, %84, add, 1, 1, 0") \
        : SFAST_SUM_64, SFAST_SUM_8(64), SFAST_SUM_8(72)                                                        \
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
#undef SFAST_REGISTERS_80
#undef SFAST_REGISTERS_64
#undef SFAST_SUM_64
#undef SFAST_SUM_8

}  // namespace
}  // namespace sfast

#endif
