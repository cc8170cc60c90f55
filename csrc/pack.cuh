// Reading and writing float32, float16 and bfloat16 as float, one element or 16 bytes at a time.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include "device.cuh"
#include "sfast.h"

namespace sfast {

// How kVec elements of T travel: 16 bytes in one transaction, or one element.
template <typename T, int kVec>
struct Storage {
    static_assert(sizeof(T) * kVec == 16, "a pack is 16 bytes or one element");
    using type = uint4;
};

template <typename T>
struct Storage<T, 1> {
    using type = T;
};

template <typename T, int kVec>
using Pack = typename Storage<T, kVec>::type;

// Whether packs of 16 bytes may be read from here.
inline bool is_aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

// Elements of T in 16 bytes.
template <typename T>
inline constexpr int kFullPack = 16 / sizeof(T);

__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ float to_float(__half value) { return __half2float(value); }
__device__ __forceinline__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }

template <typename T>
__device__ __forceinline__ T from_float(float value);
template <>
__device__ __forceinline__ float from_float<float>(float value) {
    return value;
}
template <>
__device__ __forceinline__ __half from_float<__half>(float value) {
    return __float2half_rn(value);
}
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float value) {
    return __float2bfloat16_rn(value);
}

// The two halves of a 32-bit word, first element in the low bits.
__device__ __forceinline__ float2 unpack_word(uint32_t word, __half) {
    __half2 pair;
    memcpy(&pair, &word, sizeof pair);
    return __half22float2(pair);
}
__device__ __forceinline__ float2 unpack_word(uint32_t word, __nv_bfloat16) {
    // A bfloat16 is the upper half of a float.
    return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
}
__device__ __forceinline__ uint32_t pack_word(float low, float high, __half) {
    const __half2 pair = __floats2half2_rn(low, high);
    uint32_t word;
    memcpy(&word, &pair, sizeof word);
    return word;
}
__device__ __forceinline__ uint32_t pack_word(float low, float high, __nv_bfloat16) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    uint32_t word;
    memcpy(&word, &pair, sizeof word);
    return word;
}

template <typename T, int kVec>
__device__ __forceinline__ Pack<T, kVec> load_pack(const T* pointer) {
    return *reinterpret_cast<const Pack<T, kVec>*>(pointer);
}

template <typename T, int kVec>
__device__ __forceinline__ void store_pack(T* pointer, Pack<T, kVec> pack) {
    *reinterpret_cast<Pack<T, kVec>*>(pointer) = pack;
}

template <typename T, int kVec>
__device__ __forceinline__ void unpack(const Pack<T, kVec>& pack, float (&out)[kVec]) {
    if constexpr (kVec == 1) {
        out[0] = to_float(pack);
    } else {
        const uint32_t words[4] = {pack.x, pack.y, pack.z, pack.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if constexpr (sizeof(T) == 4) {
                out[i] = __uint_as_float(words[i]);
            } else {
                const float2 pair = unpack_word(words[i], T{});
                out[2 * i] = pair.x;
                out[2 * i + 1] = pair.y;
            }
        }
    }
}

template <typename T, int kVec>
__device__ __forceinline__ Pack<T, kVec> pack(const float (&in)[kVec]) {
    if constexpr (kVec == 1) {
        return from_float<T>(in[0]);
    } else {
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if constexpr (sizeof(T) == 4) {
                words[i] = __float_as_uint(in[i]);
            } else {
                words[i] = pack_word(in[2 * i], in[2 * i + 1], T{});
            }
        }
        return make_uint4(words[0], words[1], words[2], words[3]);
    }
}

// A small vector whose element type is known at run time only (weights may differ in dtype from the activations). Read
// once per thread and column, so the switch costs nothing.
struct Vector {
    const void* data;  // null: absent
    int32_t dtype;

    __device__ __forceinline__ float at(int64_t index, float absent) const {
        if (data == nullptr) return absent;
        if (dtype == SFAST_FLOAT16) return to_float(static_cast<const __half*>(data)[index]);
        if (dtype == SFAST_BFLOAT16) return to_float(static_cast<const __nv_bfloat16*>(data)[index]);
        return static_cast<const float*>(data)[index];
    }

    // kCount elements from `index` on. One branch for all of them: loads behind a branch each would wait for one
    // another.
    template <int kCount>
    __device__ __forceinline__ void load(int64_t index, float absent, float (&out)[kCount]) const {
        if (data == nullptr) {
#pragma unroll
            for (int i = 0; i < kCount; ++i) out[i] = absent;
        } else if (dtype == SFAST_FLOAT16) {
            load_as<__half>(index, out);
        } else if (dtype == SFAST_BFLOAT16) {
            load_as<__nv_bfloat16>(index, out);
        } else {
            load_as<float>(index, out);
        }
    }

  private:
    template <typename T, int kCount>
    __device__ __forceinline__ void load_as(int64_t index, float (&out)[kCount]) const {
        const T* const elements = static_cast<const T*>(data) + index;
#pragma unroll
        for (int i = 0; i < kCount; ++i) out[i] = to_float(elements[i]);
    }
};

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
    return value;
}

}  // namespace sfast
