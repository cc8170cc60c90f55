// GroupNorm (+ a per-channel addend) (+ SiLU) on channels_last activations.
//
//     v = x + channel_add[n, c]        mean, var over each (n, group): hw positions x c / groups channels
//     y = act((v - mean) / sqrt(var + eps) * weight[c] + bias[c])
//
// x and y are [n, hw, c] with c innermost, float32, float16 or bfloat16; all arithmetic is float32. Any c that groups
// divides; 16-byte accesses where c and the pointers allow, one element at a time otherwise. The last channels may be
// another tensor's, so that a concatenation needs no pass of its own.
//
// The bytes that must move are one read and one write of the tensor; a group's statistics need all of it before the
// first output. - Small maps: one kernel, a block per sample and few groups. It reads its tile twice, the second time
// from L1. - Large maps: two kernels. moments_kernel gives every multiprocessor one run of whole rows and leaves (mean,
// M2) of each group in
//   the workspace; apply_kernel merges them per block and normalises. That is two reads and one write, but the second
//   read comes from L2 as far as the tensor fits: apply_kernel takes the rows that were read last first. A third kernel
//   for merging would cost a launch; merging in every block costs a read of chunks x groups x 8 bytes, kept below a
//   quarter of the block's own.
// No atomics: the order of every sum is fixed by the shape and the number of multiprocessors, so equal inputs give
// equal bits.
#include <algorithm>

#include "group_norm_tile.cuh"

namespace sfast {
namespace {

struct Shape {
    int64_t n, hw, c, groups;
    __host__ __device__ int group_size() const { return int(c) / int(groups); }  // both are checked: no 64-bit division
};

template <typename T>
struct Arguments {
    Source<T> source;
    T* y;
    Affine affine;
    int64_t add_stride;
    float2* workspace;  // [n, groups, chunks] (mean, M2)
    float eps;
    bool use_silu;
};

// How a shape is cut up. The tile of a block has `groups` groups and rows of the whole map, of a chunk or of a piece of
// one.
struct Plan {
    Tile tile;
    int groups;
    int chunks;  // runs of rows per sample with partial moments; 0 in the one-kernel form
    int chunk_rows;
    int pieces;  // blocks of apply_kernel per chunk
    int threads;
    size_t moments_bytes, apply_bytes;  // shared memory
};

// Shared memory of tile_moments and group_parts, in this order.
struct MomentsMemory {
    float *means, *m2s;
    Moments* parts;

    __device__ MomentsMemory(float* memory, const Tile& tile, int channels) {
        means = memory;
        m2s = means + tile.slots * channels;
        parts = reinterpret_cast<Moments*>(m2s + tile.slots * channels);
    }
};

template <typename T, int kVec>
__global__ void __launch_bounds__(kThreads, 1) one_kernel(Arguments<T> arguments, Shape shape, Plan plan) {
    extern __shared__ float memory[];
    const int group_size = shape.group_size();
    const int channels = plan.groups * group_size;
    const int tiles = int(shape.groups) / plan.groups;
    const int64_t sample = blockIdx.x / tiles;
    const int64_t channel = int64_t(blockIdx.x % tiles) * channels;
    plan.tile.first_row = sample * shape.hw;
    plan.tile.first_channel = int(channel);
    Affine affine = arguments.affine;
    affine.channel = channel;
    affine.add_offset = sample * arguments.add_stride + channel;

    MomentsMemory shared(memory, plan.tile, channels);
    const int parts = part_count(plan.groups);
    float* means = reinterpret_cast<float*>(shared.parts + plan.groups * parts);
    float* inverse_deviations = means + plan.groups;
    float* scales = shared.means;  // the slots' moments are done with by then
    float* shifts = scales + channels;
    tile_moments<T, kVec>(arguments.source, plan.tile, affine.add, affine.add_offset, shared.means, shared.m2s);
    const Batch<T, kVec> first = first_batch<T, kVec>(arguments.source, plan.tile);
    __syncthreads();
    group_parts(shared.means, shared.m2s, plan.tile, channels, plan.groups, shared.parts);
    __syncthreads();
#pragma unroll 1
    for (int group = threadIdx.x; group < plan.groups; group += blockDim.x) {
        const Moments moments = merge_parts(shared.parts, group, parts);
        means[group] = moments.mean;
        inverse_deviations[group] = inverse_deviation(moments.m2, moments.count, arguments.eps);
    }
    __syncthreads();
    channel_scales(means, inverse_deviations, channels, group_size, affine, scales, shifts);
    __syncthreads();
    tile_apply<T, kVec>(
        arguments.source, arguments.y, int(shape.c), plan.tile, first, scales, shifts, arguments.use_silu);
}

template <typename T, int kVec>
__global__ void __launch_bounds__(kThreads, 1) moments_kernel(Arguments<T> arguments, Shape shape, Plan plan) {
    extern __shared__ float memory[];
    const int64_t sample = blockIdx.x / plan.chunks;
    const int chunk = blockIdx.x % plan.chunks;
    const int64_t first_row = int64_t(chunk) * plan.chunk_rows;
    Tile tile = plan.tile;
    tile.first_row = sample * shape.hw + first_row;
    tile.first_channel = 0;
    tile.rows = int(min(int64_t(plan.chunk_rows), shape.hw - first_row));

    MomentsMemory shared(memory, tile, int(shape.c));
    tile_moments<T, kVec>(
        arguments.source, tile, arguments.affine.add, sample * arguments.add_stride, shared.means, shared.m2s);
    __syncthreads();
    group_parts(shared.means, shared.m2s, tile, int(shape.c), plan.groups, shared.parts);
    __syncthreads();
    const int parts = part_count(plan.groups);
#pragma unroll 1
    for (int group = threadIdx.x; group < plan.groups; group += blockDim.x) {
        const Moments moments = merge_parts(shared.parts, group, parts);
        arguments.workspace[(sample * plan.groups + group) * plan.chunks + chunk] =
            make_float2(moments.mean, moments.m2);
    }
}

constexpr int kMergingLanes = 8;  // few, so that one round does all groups: each begins with loads that come from L2

__device__ __forceinline__ float lanes_sum(float value) {
#pragma unroll
    for (int offset = kMergingLanes / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
    return value;
}

// kMergingLanes lanes, all of a warp at the same time: merge a group's moments over all chunks of its sample.
__device__ __forceinline__ Moments chunks_moments(const float2* partial, const Plan& plan, const Shape& shape) {
    const int lane = threadIdx.x % kMergingLanes, hw = int(shape.hw);
    const float group_size = float(shape.group_size());
    float sum = 0.f;
#pragma unroll 4
    for (int chunk = lane; chunk < plan.chunks; chunk += kMergingLanes) {
        const float rows = float(min(plan.chunk_rows, hw - chunk * plan.chunk_rows));
        sum += rows * partial[chunk].x;
    }
    const float mean = lanes_sum(sum) / float(shape.hw);
    float m2 = 0.f;
#pragma unroll 2
    for (int chunk = lane; chunk < plan.chunks; chunk += kMergingLanes) {
        const float rows = float(min(plan.chunk_rows, hw - chunk * plan.chunk_rows));
        const float delta = partial[chunk].x - mean;
        m2 += partial[chunk].y + rows * group_size * (delta * delta);
    }
    return {float(shape.hw) * group_size, mean, lanes_sum(m2)};
}

template <typename T, int kVec>
__global__ void __launch_bounds__(kThreads, 2) apply_kernel(Arguments<T> arguments, Shape shape, Plan plan) {
    extern __shared__ float memory[];
    const int chunk = blockIdx.x % plan.chunks;
    const int64_t rest = blockIdx.x / plan.chunks;
    const int64_t sample = rest % shape.n;
    // the last rows of each chunk were read last: take them first
    const int piece = plan.pieces - 1 - int(rest / shape.n);
    const int piece_rows = (plan.chunk_rows + plan.pieces - 1) / plan.pieces;
    const int64_t first_row = int64_t(chunk) * plan.chunk_rows + int64_t(piece) * piece_rows;
    const int64_t last_row = min(min(first_row + piece_rows, int64_t(chunk + 1) * plan.chunk_rows), shape.hw);
    if (first_row >= last_row) return;
    Tile tile = plan.tile;
    tile.first_row = sample * shape.hw + first_row;
    tile.first_channel = 0;
    tile.rows = int(last_row - first_row);
    Affine affine = arguments.affine;
    affine.channel = 0;
    affine.add_offset = sample * arguments.add_stride;

    const Batch<T, kVec> first = first_batch<T, kVec>(arguments.source, tile);
    float* scales = memory;
    float* shifts = scales + shape.c;
    float* means = shifts + shape.c;
    float* inverse_deviations = means + plan.groups;
    const float2* partial = arguments.workspace + sample * plan.groups * plan.chunks;
#pragma unroll 1
    for (int first_group = 0; first_group < plan.groups; first_group += blockDim.x / kMergingLanes) {
        const int group = first_group + threadIdx.x / kMergingLanes;
        const Moments moments =
            chunks_moments(partial + int64_t(min(group, plan.groups - 1)) * plan.chunks, plan, shape);
        if (group < plan.groups && threadIdx.x % kMergingLanes == 0) {
            means[group] = moments.mean;
            inverse_deviations[group] = inverse_deviation(moments.m2, moments.count, arguments.eps);
        }
    }
    __syncthreads();
    channel_scales(means, inverse_deviations, int(shape.c), shape.group_size(), affine, scales, shifts);
    __syncthreads();
    tile_apply<T, kVec>(arguments.source, arguments.y, int(shape.c), tile, first, scales, shifts, arguments.use_silu);
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t most_chunks(int64_t n, int sm_count) { return std::max<int64_t>(1, ceil_div(sm_count, n)); }

// Threads and shared memory for tiles of `channels` channels and about `rows` rows.
void shape_block(Plan* plan, int64_t rows, int64_t channels, int vec) {
    Tile& tile = plan->tile;
    tile.columns = int(channels / vec);
    tile.lanes = std::min(tile.columns, kThreads);
    tile.slots = int(std::max<int64_t>(1, std::min<int64_t>(kThreads / tile.lanes, ceil_div(rows, kBatch))));
    plan->threads = int(ceil_div(tile.lanes * tile.slots, 32) * 32);
    const int parts = std::max(plan->groups, plan->threads / 32);
    const size_t statistics_bytes = 2 * size_t(plan->groups) * sizeof(float);
    plan->apply_bytes = 2 * size_t(channels) * sizeof(float) + statistics_bytes;
    plan->moments_bytes =
        2 * size_t(tile.slots) * channels * sizeof(float) + parts * sizeof(Moments) + statistics_bytes;
}

// The most elements of a block's tile in the one-kernel form: above it too few multiprocessors would do all the work.
constexpr int64_t kOneKernelElements = 20480;

// False where the one-kernel form doesn't suit the shape and isn't asked for.
bool plan_one_kernel(Plan* plan, const Shape& shape, int vec, int32_t flags) {
    int64_t groups = 1;  // the fewest whose channels are whole packs
    while (groups <= shape.groups && (shape.groups % groups != 0 || groups * shape.group_size() % vec != 0)) ++groups;
    const int64_t channels = groups * shape.group_size();
    if (!(flags & SFAST_ONE_KERNEL) && channels * shape.hw > kOneKernelElements) return false;
    plan->groups = int(groups);
    plan->chunks = 0;
    plan->tile.rows = int(shape.hw);
    shape_block(plan, shape.hw, channels, vec);
    return true;
}

void plan_two_kernels(Plan* plan, const Shape& shape, int vec, int64_t element_bytes, int sm_count) {
    plan->groups = int(shape.groups);
    const int64_t slots = std::max<int64_t>(1, kThreads / (shape.c / vec));
    const int64_t chunks = std::min(most_chunks(shape.n, sm_count), ceil_div(shape.hw, slots * kBatch));
    plan->chunk_rows = int(ceil_div(shape.hw, chunks));
    plan->chunks = int(ceil_div(shape.hw, plan->chunk_rows));
    shape_block(plan, plan->chunk_rows, shape.c, vec);
    const int64_t piece_bytes = std::max<int64_t>(32 << 10, 4 * plan->chunks * shape.groups * int64_t(sizeof(float2)));
    plan->pieces = int(std::max<int64_t>(1, plan->chunk_rows * shape.c * element_bytes / piece_bytes));
}

template <typename Kernel, typename T>
cudaError_t start(Kernel* kernel, int64_t blocks, size_t shared_bytes, const Arguments<T>& arguments,
    const Shape& shape, const Plan& plan, cudaStream_t stream) {
    if (blocks > INT32_MAX) return cudaErrorInvalidValue;
    if (shared_bytes > 48 << 10) {
        const cudaError_t error =
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared_bytes));
        if (error != cudaSuccess) return told(error);
    }
    kernel<<<unsigned(blocks), plan.threads, shared_bytes, stream>>>(arguments, shape, plan);
    return cudaGetLastError();
}

template <typename T, int kVec>
cudaError_t launch(
    const Arguments<T>& arguments, const Shape& shape, int32_t flags, int sm_count, cudaStream_t stream) {
    Plan plan{};
    if (!(flags & SFAST_TWO_KERNELS) && plan_one_kernel(&plan, shape, kVec, flags)) {
        return start(one_kernel<T, kVec>, shape.n * (shape.groups / plan.groups), plan.moments_bytes, arguments, shape,
            plan, stream);
    }
    plan_two_kernels(&plan, shape, kVec, sizeof(T), sm_count);
    const int64_t runs = shape.n * plan.chunks;
    const cudaError_t error = start(moments_kernel<T, kVec>, runs, plan.moments_bytes, arguments, shape, plan, stream);
    if (error != cudaSuccess) return error;
    return start(apply_kernel<T, kVec>, runs * plan.pieces, plan.apply_bytes, arguments, shape, plan, stream);
}

template <typename T>
cudaError_t launch_typed(const void* x, const void* tail, int64_t tail_c, void* y, const Affine& affine,
    int64_t add_stride, const Shape& shape, float eps, int32_t flags, void* workspace, int sm_count,
    cudaStream_t stream) {
    const Arguments<T> arguments{source_of<T>(x, tail, shape.c, tail_c), static_cast<T*>(y), affine, add_stride,
        static_cast<float2*>(workspace), eps, (flags & SFAST_SILU) != 0};
    const bool whole = shape.c % kFullPack<T> == 0 && tail_c % kFullPack<T> == 0;  // no pack is of two tensors
    if (whole && is_aligned(x) && is_aligned(tail) && is_aligned(y)) {
        return launch<T, kFullPack<T>>(arguments, shape, flags, sm_count, stream);
    }
    return launch<T, 1>(arguments, shape, flags, sm_count, stream);
}

}  // namespace
}  // namespace sfast

// Bytes of workspace that sfast_group_norm_act wants on the current device for n samples and this many groups.
SFAST_API int64_t sfast_group_norm_act_workspace_bytes(int64_t n, int64_t groups) {
    int sm_count = 0;
    if (n <= 0 || groups <= 0 || sfast::multiprocessors(&sm_count) != cudaSuccess) return 0;
    return n * groups * sfast::most_chunks(n, sm_count) * int64_t(sizeof(float2));
}

// y = act((v - mean(v)) / sqrt(var(v) + eps) * weight + bias), v = x + channel_add; mean and var over each group of c /
// groups channels and all hw positions of a sample; act is SiLU or nothing.
//   x, y         [n, hw, c] dense, of `dtype`
//   tail         [n, hw, tail_c] dense, of `dtype`: the last tail_c of the c channels, behind those of x [n, hw, c -
//                tail_c]; or null, 0
//   weight, bias [c] or null, of their own dtypes
//   channel_add  [n, c] of `channel_add_dtype`, rows `channel_add_stride` elements apart (0: one row for all samples),
//                or null
//   workspace    on the device, aligned to 8 bytes; holds nothing before or after
SFAST_API int32_t sfast_group_norm_act(const void* x, const void* tail, int64_t tail_c, void* y, const void* weight,
    int32_t weight_dtype, const void* bias, int32_t bias_dtype, const void* channel_add, int32_t channel_add_dtype,
    int64_t channel_add_stride, int64_t n, int64_t hw, int64_t c, int64_t groups, float eps, int32_t dtype,
    int32_t flags, void* workspace, int64_t workspace_bytes, void* stream) {
    using namespace sfast;
    if (groups <= 0 || c % groups != 0 || n < 0 || hw < 0 || hw > INT32_MAX || c > INT32_MAX)
        return cudaErrorInvalidValue;
    if (tail_c < 0 || tail_c > c || (tail_c > 0) != (tail != nullptr)) return cudaErrorInvalidValue;
    if (n == 0 || hw == 0 || c == 0) return cudaSuccess;
    int sm_count = 0;
    const cudaError_t error = multiprocessors(&sm_count);
    if (error != cudaSuccess) return error;
    if (workspace_bytes < n * groups * most_chunks(n, sm_count) * int64_t(sizeof(float2))) return cudaErrorInvalidValue;
    const Affine affine{{weight, weight_dtype}, {bias, bias_dtype}, {channel_add, channel_add_dtype}, 0, 0};
    const Shape shape{n, hw, c, groups};
    auto* const queue = static_cast<cudaStream_t>(stream);
    switch (dtype) {
        case SFAST_FLOAT32:
            return launch_typed<float>(
                x, tail, tail_c, y, affine, channel_add_stride, shape, eps, flags, workspace, sm_count, queue);
        case SFAST_FLOAT16:
            return launch_typed<__half>(
                x, tail, tail_c, y, affine, channel_add_stride, shape, eps, flags, workspace, sm_count, queue);
        case SFAST_BFLOAT16:
            return launch_typed<__nv_bfloat16>(
                x, tail, tail_c, y, affine, channel_add_stride, shape, eps, flags, workspace, sm_count, queue);
        default: return cudaErrorInvalidValue;
    }
}
