// Attention with narrow heads: the launch. How the kernel works is in attention_kernel.cuh.
#include "attention_kernel.cuh"

#if CUDART_VERSION >= 12000

namespace sfast {
namespace {

constexpr int kHead = 40;  // SD1.5's at 64x64

// A map of [images, heads, rows, head], whose rows, heads and images lie `strides` apart, in boxes of `box_rows` rows.
cudaError_t encode_heads(TensorMapEncoder encoder, CUtensorMap* map, int32_t dtype, const void* data, int64_t images, int64_t heads,
                         int64_t rows, const int64_t* strides, int box_rows) {
    return encode_map<4>(encoder, map, dtype, data, {kHead, rows, heads, images}, {strides[0], strides[1], strides[2]},
                         {kRowBytes / 2, box_rows, 1, 1});
}

template <typename T>
cudaError_t launch_attention(const AttentionArguments& arguments, int64_t images, cudaStream_t stream) {
    auto* const kernel = attention_kernel<T, kHead>;
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
    if (error != cudaSuccess) return told(error);
    const unsigned blocks = unsigned((int64_t(arguments.queries) + kBlockQueries - 1) / kBlockQueries);
    kernel<<<dim3(blocks, unsigned(images * arguments.heads)), kBlockThreads, kSharedBytes, stream>>>(arguments);
    return told(cudaGetLastError());
}

}  // namespace
}  // namespace sfast

SFAST_API int32_t sfast_attention_status(void) {
    using namespace sfast;
    cudaFuncAttributes attributes;
    const cudaError_t error = cudaFuncGetAttributes(&attributes, attention_kernel<__half, kHead>);
    if (error != cudaSuccess) return told(error);
    if (attributes.sharedSizeBytes == 0) return cudaErrorNoKernelImageForDevice;  // empty: made for another architecture
    TensorMapEncoder encoder;
    return tensor_map_encoder(&encoder);
}

SFAST_API int32_t sfast_attention(
    const void* q, const int64_t* q_strides,
    const void* k, const int64_t* k_strides,
    const void* v, const int64_t* v_strides,
    void* out,
    int64_t images, int64_t heads, int64_t queries, int64_t keys, int64_t head,
    float scale, int32_t dtype, void* stream) {
    using namespace sfast;
    if (head != kHead || (dtype != SFAST_FLOAT16 && dtype != SFAST_BFLOAT16)) return cudaErrorInvalidValue;
    if (images < 0 || heads < 0 || queries < 0 || keys <= 0 || heads > 65535 || images * heads > 65535) return cudaErrorInvalidValue;
    if (queries > INT32_MAX - kBlockQueries || keys > INT32_MAX - kKeys) return cudaErrorInvalidValue;
    if (reinterpret_cast<uintptr_t>(out) % sizeof(uint32_t) != 0) return cudaErrorMisalignedAddress;
    if (images * heads * queries == 0) return cudaSuccess;

    TensorMapEncoder encoder;
    cudaError_t error = tensor_map_encoder(&encoder);
    if (error != cudaSuccess) return error;
    AttentionArguments arguments{};
    error = encode_heads(encoder, &arguments.q, dtype, q, images, heads, queries, q_strides, kGroupQueries);
    if (error != cudaSuccess) return error;
    error = encode_heads(encoder, &arguments.k, dtype, k, images, heads, keys, k_strides, kKeys);
    if (error != cudaSuccess) return error;
    error = encode_heads(encoder, &arguments.v, dtype, v, images, heads, keys, v_strides, kKeys);
    if (error != cudaSuccess) return error;
    arguments.out = out;
    arguments.heads = int(heads);
    arguments.queries = int(queries);
    arguments.keys = int(keys);
    arguments.factor = scale * 1.4426950408889634f;
    auto* const queue = static_cast<cudaStream_t>(stream);
    if (dtype == SFAST_FLOAT16) return launch_attention<__half>(arguments, images, queue);
    return launch_attention<__nv_bfloat16>(arguments, images, queue);
}

#else  // CUDA 11 has neither tensor maps nor wgmma

SFAST_API int32_t sfast_attention_status(void) { return cudaErrorNotSupported; }

SFAST_API int32_t sfast_attention(const void*, const int64_t*, const void*, const int64_t*, const void*, const int64_t*, void*, int64_t,
                                  int64_t, int64_t, int64_t, int64_t, float, int32_t, void*) {
    return cudaErrorNotSupported;
}

#endif
