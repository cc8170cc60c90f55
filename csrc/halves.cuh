// Whether the second half of a batch is the first one again, bit for bit, as it is where classifier-free guidance asks
// one image for two prompts.
#pragma once

#include <cuda_runtime.h>
#include <stdint.h>

namespace sfast {
namespace {

constexpr int kCompareThreads = 256;
constexpr int kCompareRows = 16;  // of a block
constexpr int kCompareUnit = 16;  // bytes

// [images, rows, heads, head]: the first half's first element, and distances in units.
struct Halved {
    const uint4* first;
    int64_t row, head, image;
    int64_t half;  // from an image to the one it may be again
    int rows;
};

struct HalvedArguments {
    Halved tensors[3];
    int heads;
    int32_t* differ;  // 0 before; what is written if anything differs is 1, whoever writes
};

// A block takes kCompareRows rows of blockIdx.y's image of blockIdx.z's tensor; kUnits are a head's.
template <int kUnits>
__global__ void __launch_bounds__(kCompareThreads) halves_kernel(const __grid_constant__ HalvedArguments arguments) {
    const Halved& tensor = arguments.tensors[blockIdx.z];
    const int first_row = int(blockIdx.x) * kCompareRows, rows = min(tensor.rows - first_row, kCompareRows);
    if (rows <= 0 || *static_cast<volatile int32_t*>(arguments.differ) != 0) return;
    const uint4* const first = tensor.first + int64_t(blockIdx.y) * tensor.image + first_row * tensor.row;
    const int of_row = arguments.heads * kUnits, count = rows * of_row;
    uint32_t different = 0;
#pragma unroll 4
    for (int i = int(threadIdx.x); i < count; i += kCompareThreads) {
        const int row = i / of_row, in_row = i % of_row;
        const uint4* const one = first + row * tensor.row + in_row / kUnits * tensor.head + in_row % kUnits;
        const uint4 a = *one, b = one[tensor.half];
        different |= (a.x ^ b.x) | (a.y ^ b.y) | (a.z ^ b.z) | (a.w ^ b.w);
    }
    if (different != 0) *arguments.differ = 1;
}

}  // namespace
}  // namespace sfast
