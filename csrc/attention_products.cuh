// The products of attention_kernel.cuh by wgmma, of float16 and bfloat16, which are summed in float32.
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

template <typename T>
__device__ __forceinline__ uint32_t rounded(float low, float high) {
    if constexpr (std::is_same_v<T, __half>) {
        const __half2 pair = __floats2half2_rn(low, high);
        return reinterpret_cast<const uint32_t&>(pair);
    } else {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
        return reinterpret_cast<const uint32_t&>(pair);
    }
}

// scores [64, 128] = (accumulate ? scores : 0) + q [64, 16] @ k [128, 16]^T, by a warpgroup. Thread t has of it, for j
// in 0..15, the columns 8 j + 2 (t % 4) and the next one: scores[4 j] and scores[4 j + 1] of row 16 (t / 32) + t % 32 /
// 4, the next two of the row 8 below.
#define SFAST_SCORES(TYPE)                                                                   \
    asm volatile(                                                                            \
        "{\n\t.reg .pred accumulate;\n\t"                                                    \
        "setp.ne.b32 accumulate, %66, 0;\n\t"                                                \
        "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE " {" SFAST_REGISTERS_64 \
        "}, "                                                                                \
        "%64, %65, accumulate, 1, 1, 0, 0;\n\t}"                                             \
        : SFAST_64(SFAST_FLOAT, scores)                                                      \
        : "l"(q), "l"(k), "r"(int32_t(accumulate)))

template <typename T>
__device__ __forceinline__ void multiply_keys(float (&scores)[64], uint64_t q, uint64_t k, bool accumulate) {
    if constexpr (std::is_same_v<T, __half>)
        SFAST_SCORES("f16");
    else
        SFAST_SCORES("bf16");
}
#undef SFAST_SCORES

// sum [64, head] += weights [64, 16] @ v [16, head]. Scores of 16 keys, rounded and two to a register, are such weights
// where they are. The rows of v lie as keys' do, but here they are the depth: the last operand has wgmma transpose it.
#define SFAST_VALUES_40(TYPE)                                                                                  \
    asm volatile("wgmma.mma_async.sync.aligned.m64n40k16.f32." TYPE "." TYPE                                   \
                 " {"                                                                                          \
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19}, " \
                 "{%20, %21, %22, %23}, %24, 1, 1, 1, 1;"                                                      \
        : SFAST_16(SFAST_FLOAT, sum, 0), SFAST_4(SFAST_FLOAT, sum, 16)                                         \
        : "r"(weights[0]), "r"(weights[1]), "r"(weights[2]), "r"(weights[3]), "l"(v))
#define SFAST_VALUES_64(TYPE)                                                                        \
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " {" SFAST_REGISTERS_32 \
                 "}, "                                                                               \
                 "{%32, %33, %34, %35}, %36, 1, 1, 1, 1;"                                            \
        : SFAST_32(SFAST_FLOAT, sum, 0)                                                              \
        : "r"(weights[0]), "r"(weights[1]), "r"(weights[2]), "r"(weights[3]), "l"(v))

template <typename T>
__device__ __forceinline__ void add_values(float (&sum)[20], const uint32_t* weights, uint64_t v) {
    if constexpr (std::is_same_v<T, __half>)
        SFAST_VALUES_40("f16");
    else
        SFAST_VALUES_40("bf16");
}
template <typename T>
__device__ __forceinline__ void add_values(float (&sum)[32], const uint32_t* weights, uint64_t v) {
    if constexpr (std::is_same_v<T, __half>)
        SFAST_VALUES_64("f16");
    else
        SFAST_VALUES_64("bf16");
}
#undef SFAST_VALUES_40
#undef SFAST_VALUES_64

}  // namespace
}  // namespace sfast

#endif
