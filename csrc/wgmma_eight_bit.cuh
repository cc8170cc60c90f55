// wgmma for operands of 8 bits on compute capability 9.0a: int8 summed in int32, which is exact, and float8 e4m3 summed
// by the tensor core, which keeps about 14 bits of a sum (what cuBLAS calls fast accumulation).
#pragma once

#include <stdint.h>

#include "hopper.cuh"
#include "wgmma_registers.cuh"

#ifdef SFAST_HOPPER

namespace sfast {
namespace {

struct Int8 {
    using Sum = int32_t;
};
struct E4M3 {
    using Sum = float;
};

#define SFAST_WGMMA(SIZE, TYPES, REGISTERS, LEFT, RIGHT, ADD, SIGNS)                                       \
    "{\n\t.reg .pred add;\n\tsetp.ne.b32 add, " ADD ", 0;\n\twgmma.mma_async.sync.aligned." SIZE "." TYPES \
    " {" REGISTERS "}, " LEFT ", " RIGHT ", add" SIGNS ";\n\t}"

// sum [64, columns] = rows [64, 32] @ weight [columns, 32]^T, plus what sum was where `add` is not 0, by a warpgroup,
// both operands in shared memory. Thread t has of it, for j in 0 .. columns / 8, the columns 8 j + 2 (t % 4) and the
// next one: sum[4 j] and sum[4 j + 1] of row 16 (t / 32) + t % 32 / 4, the next two of the row 8 below.
#define SFAST_MULTIPLY(KIND, SUMS, SIZE, TYPES, SIGNS, REGISTERS, LEFT, RIGHT, ADD, OPERANDS)                        \
    __device__ __forceinline__ void multiply(KIND, KIND::Sum(&sum)[SUMS], uint64_t rows, uint64_t weight, int add) { \
        asm volatile(SFAST_WGMMA(SIZE, TYPES, REGISTERS, LEFT, RIGHT, ADD, SIGNS)                                    \
            : OPERANDS                                                                                               \
            : "l"(rows), "l"(weight), "r"(add));                                                                     \
    }
#define SFAST_SUMS_96(C) SFAST_64(C, sum), SFAST_32(C, sum, 64)
#define SFAST_SUMS_128(C) SFAST_SUMS_96(C), SFAST_32(C, sum, 96)

#define SFAST_MULTIPLY_ALL(KIND, TYPES, SIGNS, C)                                                                   \
    SFAST_MULTIPLY(KIND, 64, "m64n128k32", TYPES, SIGNS, SFAST_REGISTERS_64, "%64", "%65", "%66", SFAST_64(C, sum)) \
    SFAST_MULTIPLY(KIND, 96, "m64n192k32", TYPES, SIGNS, SFAST_REGISTERS_96, "%96", "%97", "%98", SFAST_SUMS_96(C)) \
    SFAST_MULTIPLY(                                                                                                 \
        KIND, 128, "m64n256k32", TYPES, SIGNS, SFAST_REGISTERS_128, "%128", "%129", "%130", SFAST_SUMS_128(C))
SFAST_MULTIPLY_ALL(Int8, "s32.s8.s8", "", SFAST_INT)
SFAST_MULTIPLY_ALL(E4M3, "f32.e4m3.e4m3", ", 1, 1", SFAST_FLOAT)

#undef SFAST_MULTIPLY_ALL
#undef SFAST_SUMS_128
#undef SFAST_SUMS_96
#undef SFAST_MULTIPLY
#undef SFAST_WGMMA

}  // namespace
}  // namespace sfast
#endif
