// Attention with narrow heads: the launch. How the kernel works is in attention_kernel.cuh.
#include <algorithm>

#include "attention_kernel.cuh"

#if CUDART_VERSION >= 12000

#include "halves.cuh"

namespace sfast {
namespace {

// A map of [images, heads, rows, head], whose rows, heads and images lie `strides` apart, in boxes of `box_rows` rows.
cudaError_t encode_heads(TensorMapEncoder encoder, CUtensorMap* map, int32_t dtype, const void* data, int64_t images,
    int64_t heads, int64_t rows, int64_t head, const int64_t* strides, int box_rows) {
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

// Of all images, or of the first ones.
struct Shape {
    int64_t images, heads, queries, keys, head;

    bool covered_by(const HeadCut& cut) const {
        return head == 40 ? covers<40>(cut, queries) : covers<64>(cut, queries);
    }

    // The plan for a cut as sfast.h has it, less its blocks. False where no kernel can follow that.
    bool plan(const int32_t* cut, Plan* plan) const {
        const int64_t first_heads = cut[0], rest_heads = images * heads - first_heads, paired = cut[5];
        const HeadCut first{cut[1], cut[2]}, rest{cut[3], cut[4]};
        if (first_heads < 1 || rest_heads < 0 || !covered_by(first) || (rest_heads > 0 && !covered_by(rest)))
            return false;
        const int64_t tall_tiles = first_heads * first.tall + rest_heads * rest.tall;
        const int64_t low_tiles = first_heads * first.low + rest_heads * rest.low, tiles = tall_tiles + low_tiles;
        if (paired > 0 && keys <= kKeys) return false;  // one of the two would have none, and wait for some
        if (tiles > INT32_MAX / (4 * kPair) || paired < 0 || paired > tall_tiles || (paired > 0 && low_tiles > 0))
            return false;
        plan->first = first;
        plan->rest = rest;
        plan->first_heads = int(first_heads);
        plan->tall_tiles = int(tall_tiles);
        plan->alone = int(tiles - paired);
        plan->tiles = int(tiles);
        plan->copies = 1;
        return true;
    }
};

int blocks_of(const Plan& plan, int sm_count) {
    const int at_once = std::max(sm_count / kPair, 1) * kPair;  // in clusters
    return std::max(std::min(up_to_pairs(plan.alone), at_once), (plan.tiles - plan.alone) * kPair);
}

template <typename T, int kHead, bool kHalves>
cudaError_t launch_attention(const AttentionArguments& arguments, cudaStream_t stream) {
    auto* const kernel = attention_kernel<T, kHead, kHalves>;
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Block<kHead>::kSharedBytes);
    if (error != cudaSuccess) return told(error);
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {kPair, 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(unsigned(std::max(arguments.all.blocks, kHalves ? arguments.half.blocks : 0)));
    config.blockDim = dim3(Block<kHead>::kThreads);
    config.dynamicSmemBytes = Block<kHead>::kSharedBytes;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return told(cudaLaunchKernelEx(&config, kernel, arguments));
}

template <typename T, int kHead>
cudaError_t launch_halves(const AttentionArguments& arguments, cudaStream_t stream) {
    return arguments.differ == nullptr ? launch_attention<T, kHead, false>(arguments, stream)
                                       : launch_attention<T, kHead, true>(arguments, stream);
}

template <typename T>
cudaError_t launch_head(const AttentionArguments& arguments, int64_t head, cudaStream_t stream) {
    return head == 40 ? launch_halves<T, 40>(arguments, stream) : launch_halves<T, 64>(arguments, stream);
}

Halved halved(const void* data, const int64_t* strides, int64_t images, int64_t rows) {
    constexpr int64_t kElements = kCompareUnit / 2;  // of a unit
    const int64_t image = strides[2] / kElements;
    return {static_cast<const uint4*>(data), strides[0] / kElements, strides[1] / kElements, image, images / 2 * image,
        int(rows)};
}

// `arguments.differ` is 0 where q, k and v of the second half of the images are those of the first.
cudaError_t compare(const HalvedArguments& arguments, int64_t images, int64_t head, cudaStream_t stream) {
    const cudaError_t error = cudaMemsetAsync(arguments.differ, 0, sizeof(int32_t), stream);
    if (error != cudaSuccess) return told(error);
    const int rows = std::max(arguments.tensors[0].rows, arguments.tensors[1].rows);
    const dim3 grid(unsigned((rows - 1) / kCompareRows + 1), unsigned(images / 2), 3);
    if (head == 40)
        halves_kernel<5><<<grid, kCompareThreads, 0, stream>>>(arguments);
    else
        halves_kernel<8><<<grid, kCompareThreads, 0, stream>>>(arguments);
    return told(cudaGetLastError());
}

}  // namespace
}  // namespace sfast

// cudaSuccess where sfast_attention can run on the current device: compute capability 9.0, and a build for 9.0a by CUDA
// 12 or newer. Runs nothing.
SFAST_API int32_t sfast_attention_status() {
    using namespace sfast;
    const cudaError_t error = has_code(attention_kernel<__half, 64, false>);
    if (error != cudaSuccess) return error;
    TensorMapEncoder encoder;
    return tensor_map_encoder(&encoder);
}

// out = softmax(scale * q @ k^T) @ v, the softmax over the keys, in float32 but for its rounded weights; bits don't
// differ from run to run.
//   q, k, v  [images, heads, queries or keys, head]; the head's elements are dense, *_strides are the three distances
//            in elements from one row, one head and one image to the next, multiples of 8; aligned to 16 bytes
//   out      [images, queries, heads, head] dense, aligned to 4 bytes
// All of `dtype`, SFAST_FLOAT16 or SFAST_BFLOAT16. head is 40 or 64; images * heads at most 65535.
//   cut        first_heads, first_tall, first_low, rest_tall, rest_low, paired:
//     tall, low  tiles of a head, of 256 and 192 queries where head is 40, of 192 and 128 where it is 64; together at
//                least its queries. `first` ones of the first `first_heads` heads of all images (1 or more), `rest`
//                ones of the others
//     paired     the last so many tall tiles are computed by two blocks each; only without low ones, and with more than
//                128 keys
//   half_cut   null; or for the first half of the images alone, of which there are an even number: where q, k and v of
//              the second half are the same bit for bit, the first half's result is computed and written twice
//   differ     with half_cut: 4 bytes on the device, aligned to as many, that become 0 where they are the same and 1
//              otherwise
// Where CUDA refuses the last of its kernels, `differ` may be written, never out.
SFAST_API int32_t sfast_attention(const void* q, const int64_t* q_strides, const void* k, const int64_t* k_strides,
    const void* v, const int64_t* v_strides, void* out, int64_t images, int64_t heads, int64_t queries, int64_t keys,
    int64_t head, float scale, int32_t dtype, const int32_t* cut, const int32_t* half_cut, void* differ, void* stream) {
    using namespace sfast;
    if ((head != 40 && head != 64) || (dtype != SFAST_FLOAT16 && dtype != SFAST_BFLOAT16)) return cudaErrorInvalidValue;
    if (images < 0 || heads < 0 || queries < 0 || keys <= 0 || images > 65535 || heads > 65535 ||
        images * heads > 65535)
        return cudaErrorInvalidValue;
    if (keys > INT32_MAX - kKeys) return cudaErrorInvalidValue;
    if (half_cut != nullptr && (images % 2 != 0 || differ == nullptr)) return cudaErrorInvalidValue;
    if (reinterpret_cast<uintptr_t>(out) % sizeof(uint32_t) != 0) return cudaErrorMisalignedAddress;
    if (reinterpret_cast<uintptr_t>(differ) % sizeof(int32_t) != 0) return cudaErrorMisalignedAddress;
    if (images == 0 || heads == 0 || queries == 0) return cudaSuccess;
    AttentionArguments arguments{};
    if (!Shape{images, heads, queries, keys, head}.plan(cut, &arguments.all)) return cudaErrorInvalidValue;
    if (half_cut != nullptr && !Shape{images / 2, heads, queries, keys, head}.plan(half_cut, &arguments.half))
        return cudaErrorInvalidValue;

    TensorMapEncoder encoder;
    cudaError_t error = tensor_map_encoder(&encoder);
    if (error != cudaSuccess) return error;
    int sm_count = 0;
    error = multiprocessors(&sm_count);
    if (error != cudaSuccess) return error;
    arguments.all.blocks = blocks_of(arguments.all, sm_count);
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
    arguments.factor = scale * 1.4426950408889634f;
    auto* const queue = static_cast<cudaStream_t>(stream);
    if (half_cut != nullptr) {
        arguments.half.copies = 2;
        arguments.half.blocks = blocks_of(arguments.half, sm_count);
        arguments.half_elements = images / 2 * queries * heads * head;
        auto* const found = static_cast<int32_t*>(differ);
        arguments.differ = found;
        const auto half_of = [&](const void* data, const int64_t* strides, int64_t rows) {
            return halved(data, strides, images, rows);
        };
        error = compare({{half_of(q, q_strides, queries), half_of(k, k_strides, keys), half_of(v, v_strides, keys)},
                            int(heads), found},
            images, head, queue);
        if (error != cudaSuccess) return error;
    }
    if (dtype == SFAST_FLOAT16) return launch_head<__half>(arguments, head, queue);
    return launch_head<__nv_bfloat16>(arguments, head, queue);
}

#endif  // CUDA 11 has neither tensor maps nor wgmma, so that these functions are missing
