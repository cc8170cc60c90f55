// wgmma for operands of 8 bits on compute capability 9.0a: int8 summed in int32, which is exact, and float8 e4m3 summed
// by the tensor core, which keeps about 14 bits of a sum (what cuBLAS calls fast accumulation).
#pragma once

#include <stdint.h>

#include "hopper.cuh"

#ifdef SFAST_HOPPER

namespace sfast {
namespace {

struct Int8 {
    using Sum = int32_t;
};
struct E4M3 {
    using Sum = float;
};

#define SFAST_SUM_8(C, i) \
    C(sum[i]), C(sum[i + 1]), C(sum[i + 2]), C(sum[i + 3]), C(sum[i + 4]), C(sum[i + 5]), C(sum[i + 6]), C(sum[i + 7])
#define SFAST_SUM_32(C, i) SFAST_SUM_8(C, i), SFAST_SUM_8(C, i + 8), SFAST_SUM_8(C, i + 16), SFAST_SUM_8(C, i + 24)
#define SFAST_REGISTERS_64                                                             \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SFAST_REGISTERS_96                                                               \
    SFAST_REGISTERS_64                                                                   \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define SFAST_REGISTERS_128                                                                          \
    SFAST_REGISTERS_96                                                                               \
    ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define SFAST_WGMMA(SIZE, TYPES, REGISTERS, LEFT, RIGHT, ADD, SIGNS)                                       \
    "{\n\t.reg .pred add;\n\tsetp.ne.b32 add, " ADD ", 0;\n\twgmma.mma_async.sync.aligned." SIZE "." TYPES \
    " {" REGISTERS "}, " LEFT ", " RIGHT ", add" SIGNS ";\n\t}"

// sum [64, columns] = rows [64, 32] @ weight [columns, 32]^T, plus what sum was where `add` is not 0, by a warpgroup,
// both operands in shared memory. Thread t has of it, for j in 0 .. columns / 8, the columns 8 j + 2 (t % 4) and the
// next one: sum[4 j] and sum[4 j + 1] of row 16 (t / 32) + t % 32 / 4, the next two of the row 8 below.
#define SFAST_IS_INT(value) "+r"(value)
#define SFAST_IS_FLOAT(value) "+f"(value)
#define SFAST_MULTIPLY(KIND, SUMS, SIZE, TYPES, SIGNS, REGISTERS, LEFT, RIGHT, ADD, OPERANDS)                        \
    __device__ __forceinline__ void multiply(KIND, KIND::Sum(&sum)[SUMS], uint64_t rows, uint64_t weight, int add) { \
        asm volatile(SFAST_WGMMA(SIZE, TYPES, REGISTERS, LEFT, RIGHT, ADD, SIGNS)                                    \
            : OPERANDS                                                                                               \
            : "l"(rows), "l"(weight), "r"(add));                                                                     \
    }
#define SFAST_SUMS_64(C) SFAST_SUM_32(C, 0), SFAST_SUM_32(C, 32)
#define SFAST_SUMS_96(C) SFAST_SUMS_64(C), SFAST_SUM_32(C, 64)
#define SFAST_SUMS_128(C) SFAST_SUMS_96(C), SFAST_SUM_32(C, 96)

#define SFAST_MULTIPLY_ALL(KIND, TYPES, SIGNS, C)                                                                   \
    SFAST_MULTIPLY(KIND, 64, "m64n128k32", TYPES, SIGNS, SFAST_REGISTERS_64, "%64", "%65", "%66", SFAST_SUMS_64(C)) \
    SFAST_MULTIPLY(KIND, 96, "m64n192k32", TYPES, SIGNS, SFAST_REGISTERS_96, "%96", "%97", "%98", SFAST_SUMS_96(C)) \
    SFAST_MULTIPLY(                                                                                                 \
        KIND, 128, "m64n256k32", TYPES, SIGNS, SFAST_REGISTERS_128, "%128", "%129", "%130", SFAST_SUMS_128(C))
SFAST_MULTIPLY_ALL(Int8, "s32.s8.s8", "", SFAST_IS_INT)
SFAST_MULTIPLY_ALL(E4M3, "f32.e4m3.e4m3", ", 1, 1", SFAST_IS_FLOAT)

#undef SFAST_MULTIPLY_ALL
#undef SFAST_SUMS_128
#undef SFAST_SUMS_96
#undef SFAST_SUMS_64
#undef SFAST_MULTIPLY
#undef SFAST_IS_FLOAT
#undef SFAST_IS_INT
#undef SFAST_WGMMA
#undef SFAST_REGISTERS_128
#undef SFAST_REGISTERS_96
#undef SFAST_REGISTERS_64
#undef SFAST_SUM_32
#undef SFAST_SUM_8

}  // namespace
}  // namespace sfast
#endif
