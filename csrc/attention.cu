// Attention with narrow heads: the launch. How the kernel works is in attention_kernel.cuh.
#include <algorithm>

#include "attention_kernel.cuh"

#if CUDART_VERSION >= 12000

namespace sfast {
namespace {

// A map of [images, heads, rows, head], whose rows, heads and images lie `strides` apart, in boxes of `box_rows` rows.
cudaError_t encode_heads(TensorMapEncoder encoder, CUtensorMap* map, int32_t dtype, const void* data, int64_t images, int64_t heads,
                         int64_t rows, int64_t head, const int64_t* strides, int box_rows) {
    return encode_map<4>(encoder, map, dtype, data, {head, rows, heads, images}, {strides[0], strides[1], strides[2]},
                         {kRowBytes / 2, box_rows, 1, 1});
}

int up_to_pairs(int blocks) { return (blocks + kPair - 1) / kPair * kPair; }

// Whether the tiles of a head have all its queries, and no row that an int can't count.
template <int kHead>
bool covers(const HeadCut& cut, int64_t queries) {
    if (cut.tall < 0 || cut.low < 0) return false;
    const int64_t rows = int64_t(cut.tall) * Block<kHead>::kQueries + int64_t(cut.low) * Block<kHead>::kLowQueries;
    return queries <= rows && rows <= INT32_MAX;
}

template <typename T, int kHead>
cudaError_t launch_attention(const AttentionArguments& arguments, cudaStream_t stream) {
    auto* const kernel = attention_kernel<T, kHead>;
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Block<kHead>::kSharedBytes);
    if (error != cudaSuccess) return told(error);
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {kPair, 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(unsigned(arguments.blocks));
    config.blockDim = dim3(Block<kHead>::kThreads);
    config.dynamicSmemBytes = Block<kHead>::kSharedBytes;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return told(cudaLaunchKernelEx(&config, kernel, arguments));
}

template <typename T>
cudaError_t launch_head(const AttentionArguments& arguments, int64_t head, cudaStream_t stream) {
    return head == 40 ? launch_attention<T, 40>(arguments, stream) : launch_attention<T, 64>(arguments, stream);
}

}  // namespace
}  // namespace sfast

SFAST_API int32_t sfast_attention_status(void) {
    using namespace sfast;
    const cudaError_t error = has_code(attention_kernel<__half, 64>);
    if (error != cudaSuccess) return error;
    TensorMapEncoder encoder;
    return tensor_map_encoder(&encoder);
}

SFAST_API int32_t sfast_attention(
    const void* q, const int64_t* q_strides,
    const void* k, const int64_t* k_strides,
    const void* v, const int64_t* v_strides,
    void* out,
    int64_t images, int64_t heads, int64_t queries, int64_t keys, int64_t head,
    float scale, int32_t dtype,
    int32_t first_heads, int32_t first_tall, int32_t first_low, int32_t rest_tall, int32_t rest_low, int32_t paired, void* stream) {
    using namespace sfast;
    if ((head != 40 && head != 64) || (dtype != SFAST_FLOAT16 && dtype != SFAST_BFLOAT16)) return cudaErrorInvalidValue;
    if (images < 0 || heads < 0 || queries < 0 || keys <= 0 || images > 65535 || heads > 65535 || images * heads > 65535) return cudaErrorInvalidValue;
    if (keys > INT32_MAX - kKeys) return cudaErrorInvalidValue;
    if (reinterpret_cast<uintptr_t>(out) % sizeof(uint32_t) != 0) return cudaErrorMisalignedAddress;
    if (images == 0 || heads == 0 || queries == 0) return cudaSuccess;
    const HeadCut first{first_tall, first_low}, rest{rest_tall, rest_low};
    const int64_t rest_heads = images * heads - first_heads;
    const auto covered = [&](const HeadCut& cut) { return head == 40 ? covers<40>(cut, queries) : covers<64>(cut, queries); };
    if (first_heads < 1 || rest_heads < 0 || !covered(first) || (rest_heads > 0 && !covered(rest))) return cudaErrorInvalidValue;
    const int64_t tall_tiles = int64_t(first_heads) * first_tall + rest_heads * rest_tall;
    const int64_t low_tiles = int64_t(first_heads) * first_low + rest_heads * rest_low, tiles = tall_tiles + low_tiles;
    if (paired > 0 && keys <= kKeys) return cudaErrorInvalidValue;  // one of the two would have none, and wait for some
    if (tiles > INT32_MAX / (4 * kPair) || paired < 0 || paired > tall_tiles || (paired > 0 && low_tiles > 0)) return cudaErrorInvalidValue;

    TensorMapEncoder encoder;
    cudaError_t error = tensor_map_encoder(&encoder);
    if (error != cudaSuccess) return error;
    int sm_count = 0;
    error = multiprocessors(&sm_count);
    if (error != cudaSuccess) return error;
    AttentionArguments arguments{};
    error = encode_heads(encoder, &arguments.q, dtype, q, images, heads, queries, head, q_strides, kGroupQueries);
    if (error != cudaSuccess) return error;
    error = encode_heads(encoder, &arguments.k, dtype, k, images, heads, keys, head, k_strides, kKeys);
    if (error != cudaSuccess) return error;
    error = encode_heads(encoder, &arguments.v, dtype, v, images, heads, keys, head, v_strides, kKeys);
    if (error != cudaSuccess) return error;
    arguments.out = out;
    arguments.heads = int(heads);
    arguments.queries = int(queries);
    arguments.keys = int(keys);
    arguments.first = first;
    arguments.rest = rest;
    arguments.first_heads = first_heads;
    arguments.tall_tiles = int(tall_tiles);
    arguments.tiles = int(tiles);
    arguments.alone = int(tiles) - paired;
    sm_count = std::max(sm_count / kPair, 1) * kPair;  // in clusters
    arguments.blocks = std::max(std::min(up_to_pairs(arguments.alone), sm_count), paired * kPair);
    arguments.factor = scale * 1.4426950408889634f;
    auto* const queue = static_cast<cudaStream_t>(stream);
    if (dtype == SFAST_FLOAT16) return launch_head<__half>(arguments, head, queue);
    return launch_head<__nv_bfloat16>(arguments, head, queue);
}

#else  // CUDA 11 has neither tensor maps nor wgmma

SFAST_API int32_t sfast_attention_status(void) { return cudaErrorNotSupported; }

SFAST_API int32_t sfast_attention(const void*, const int64_t*, const void*, const int64_t*, const void*, const int64_t*, void*, int64_t,
                                  int64_t, int64_t, int64_t, int64_t, float, int32_t, int32_t, int32_t, int32_t, int32_t, int32_t, int32_t,
                                  void*) {
    return cudaErrorNotSupported;
}

#endif
