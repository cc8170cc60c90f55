// The C interface of the CUDA extension: raw pointers, sizes and a stream, no header of PyTorch's and no C++ type.
// One build therefore serves every PyTorch and every Python on the machine. A function of it is defined as
// `SFAST_API type name(parameters) {`, of pointers, int32_t, int64_t and float: sfast_core/native/interface.py reads
// the definitions, so that they stand nowhere else.
//
// A launch works on the current device, queues on `stream` (a cudaStream_t) and doesn't wait. It returns a cudaError_t;
// an error means that nothing was queued, where it doesn't say otherwise. What is written must not overlap what is read.
#pragma once

#include <stdint.h>

#ifdef _WIN32
#define SFAST_API extern "C" __declspec(dllexport)
#else
#define SFAST_API extern "C" __attribute__((visibility("default")))
#endif

// Element types.
enum : int32_t { SFAST_FLOAT32 = 0, SFAST_FLOAT16 = 1, SFAST_BFLOAT16 = 2, SFAST_INT64 = 3 };

// Flags of the GroupNorms. Without one of the last two the shape decides between one kernel and two.
enum : int32_t { SFAST_SILU = 1, SFAST_ONE_KERNEL = 2, SFAST_TWO_KERNELS = 4 };

// Activations. Which of them a function knows, it says.
enum : int32_t {
    SFAST_ACT_NONE = 0,
    SFAST_ACT_SILU = 1,
    SFAST_ACT_RELU = 2,
    SFAST_ACT_GELU = 3,
    SFAST_ACT_GELU_TANH = 4
};
