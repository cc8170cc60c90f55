// GroupNorm (+ a per-channel addend) (+ SiLU) of channels_last activations in one kernel that reads them once, on GPUs
// with thread block clusters (compute capability 9.0 and up). The meaning is that of group_norm_act.cu; the input may
// come as two tensors, the second one's channels behind the first's, so that a concatenation needs no pass of its own.
//
// A cluster has a few groups of one sample, and each of its blocks a run of rows, which it holds in shared memory from
// the first read to the last write. Statistics are taken from there in two passes, the mean and then the squared
// deviations from it, and merged over the cluster's blocks through their shared memory by Chan's formula. No atomics,
// and every sum has an order that the shape fixes.
//
// On an H100 the two kernels of group_norm_act.cu and of Triton read the tensor twice, and a launch more costs a
// microsecond in a graph.
#include <cooperative_groups.h>
#include <cuda_pipeline.h>

#include <utility>

#include "group_norm_tile.cuh"

namespace sfast {
namespace {

constexpr int kMostGroups = 16;      // of a cluster
constexpr int kMostBlocks = 8;       // what every GPU with clusters can start
constexpr int kMostSamples = 65535;  // a grid's second and third dimension
// Few: what a block does once, every warp does, and these instructions are most of the time on small maps. All of a
// tile's loads are under way at once however many threads issue them.
constexpr int kClusterThreads = 256;
constexpr int kWarps = kClusterThreads / 32;

template <typename T>
struct ClusterArguments {
    Source<T> source;
    T* y;
    Affine affine;
    int64_t add_stride;
    int hw, c;  // c: of x and its tail
    int rows;   // of a block; the first `spare_rows` blocks of a cluster have one more
    int spare_rows;
    int group_size, groups;  // groups: of a cluster
    int columns, slots;      // of a block: packs in a row, and rows taken at once
    float eps;
    bool use_silu;
};

// What a block's threads and a cluster's blocks tell each other.
struct Exchange {
    float warps[kMostGroups][kWarps];
    float totals[kMostGroups];
    Moments moments[kMostGroups];  // of this block, read by all blocks of the cluster
    float means[kMostGroups], inverse_deviations[kMostGroups];
};

// Per group the sum over the block of what each thread has for the group of its first channel and for the one behind
// it.
[[maybe_unused]] __device__ __forceinline__ void block_sums(
    Exchange& exchange, int groups, int first_group, float first, float second) {
    const int warp = threadIdx.x / 32;
#pragma unroll 4
    for (int group = 0; group < groups; ++group) {
        const float sum = warp_sum(group == first_group ? first : group == first_group + 1 ? second : 0.f);
        if (threadIdx.x % 32 == 0) exchange.warps[group][warp] = sum;
    }
    __syncthreads();
#pragma unroll 1
    for (int group = warp; group < groups; group += blockDim.x / 32) {
        const int lane = threadIdx.x % 32;
        const float total = warp_sum(lane < blockDim.x / 32 ? exchange.warps[group][lane] : 0.f);
        if (lane == 0) exchange.totals[group] = total;
    }
    __syncthreads();
}

// Merges a group's moments over the cluster's blocks, one to a lane of eight. The result is right in the first lane.
[[maybe_unused]] __device__ __forceinline__ Moments merge_lanes(Moments moments) {
#pragma unroll
    for (int offset = kMostBlocks / 2; offset > 0; offset /= 2) {
        moments = merge(moments, {__shfl_down_sync(0xffffffffu, moments.count, offset, kMostBlocks),
                                     __shfl_down_sync(0xffffffffu, moments.mean, offset, kMostBlocks),
                                     __shfl_down_sync(0xffffffffu, moments.m2, offset, kMostBlocks)});
    }
    return moments;
}

template <typename T>
__global__ void __launch_bounds__(kClusterThreads, 3) cluster_kernel(ClusterArguments<T> arguments) {
#if __CUDA_ARCH__ >= 900
    namespace cg = cooperative_groups;
    constexpr int kVec = kFullPack<T>;
    extern __shared__ uint4 packs[];
    __shared__ Exchange exchange;
    const cg::cluster_group cluster = cg::this_cluster();
    // the grid is (blocks of a cluster, clusters of a sample, samples): no division to find one's place
    const int rank = blockIdx.x;
    const int blocks = gridDim.x;
    const int64_t sample = blockIdx.z;
    const int first_channel = blockIdx.y * arguments.groups * arguments.group_size;
    const int rows = arguments.rows + (rank < arguments.spare_rows ? 1 : 0);
    const int64_t first_row = sample * arguments.hw + rank * arguments.rows + min(rank, arguments.spare_rows);

    // A thread stays in one column: a pack of kVec channels. Those are of one group or of two neighbours.
    const int column = threadIdx.x % arguments.columns;
    const int slot = threadIdx.x / arguments.columns;
    const int first_group = column * kVec / arguments.group_size;
    const int in_first = min(kVec, (first_group + 1) * arguments.group_size - column * kVec);
    const int channel = first_channel + column * kVec;

    // Its packs, `step` apart: what it reads here it has fetched itself, so waiting for its own copies is enough.
    const int own_rows =
        slot < arguments.slots && slot < rows ? (rows - slot + arguments.slots - 1) / arguments.slots : 0;
    const int early_rows = own_rows / 2;  // summed up while the rest is on its way
    uint4* const own = packs + threadIdx.x;
    const int step = arguments.slots * arguments.columns;
    const T* const fetched = arguments.source.at(first_row + slot, channel);
    const int64_t stride = int64_t(arguments.slots) * arguments.source.stride(channel);
    const auto fetch = [&](int begin, int end) {
#pragma unroll 4
        for (int i = begin; i < end; ++i) __pipeline_memcpy_async(own + i * step, fetched + i * stride, sizeof(uint4));
        __pipeline_commit();
    };
    fetch(0, early_rows);
    fetch(early_rows, own_rows);

    float add[kVec], weight[kVec], bias[kVec], sums[kVec] = {};
    arguments.affine.add.load(sample * arguments.add_stride + channel, 0.f, add);
    arguments.affine.weight.load(channel, 1.f, weight);
    arguments.affine.bias.load(channel, 0.f, bias);
    const auto sum_up = [&](int begin, int end) {
#pragma unroll 4
        for (int i = begin; i < end; ++i) {
            float values[kVec];
            unpack<T, kVec>(own[i * step], values);
#pragma unroll
            for (int j = 0; j < kVec; ++j) sums[j] += values[j];
        }
    };
    __pipeline_wait_prior(1);
    sum_up(0, early_rows);
    __pipeline_wait_prior(0);
    sum_up(early_rows, own_rows);
    float first = 0.f, second = 0.f;
#pragma unroll
    for (int i = 0; i < kVec; ++i) (i < in_first ? first : second) += fmaf(float(own_rows), add[i], sums[i]);
    block_sums(exchange, arguments.groups, first_group, first, second);

    const float count = float(rows) * arguments.group_size;
    const float inverse_count = rows > 0 ? 1.f / count : 0.f;
    const int next_group = in_first < kVec ? first_group + 1 : first_group;
    float first_mean = exchange.totals[first_group] * inverse_count;
    float next_mean = exchange.totals[next_group] * inverse_count;
    float shifts[kVec];
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
        shifts[i] = add[i] - (i < in_first ? first_mean : next_mean);
        sums[i] = 0.f;
    }
#pragma unroll 4
    for (int i = 0; i < own_rows; ++i) {
        float values[kVec];
        unpack<T, kVec>(own[i * step], values);
#pragma unroll
        for (int j = 0; j < kVec; ++j) {
            const float deviation = values[j] + shifts[j];
            sums[j] = fmaf(deviation, deviation, sums[j]);
        }
    }
    const float total = threadIdx.x < arguments.groups ? exchange.totals[threadIdx.x] : 0.f;
    first = second = 0.f;
#pragma unroll
    for (int i = 0; i < kVec; ++i) (i < in_first ? first : second) += sums[i];
    __syncthreads();  // all have read the totals that are written anew now
    block_sums(exchange, arguments.groups, first_group, first, second);
    if (threadIdx.x < arguments.groups) {
        exchange.moments[threadIdx.x] = {count, total * inverse_count, exchange.totals[threadIdx.x]};
    }
    cluster.sync();
    if (threadIdx.x < kMostGroups * kMostBlocks) {
        const int group = threadIdx.x / kMostBlocks;
        const int other = threadIdx.x % kMostBlocks;
        Moments moments{};
        if (group < arguments.groups && other < blocks)
            moments = *cluster.map_shared_rank(&exchange.moments[group], other);
        moments = merge_lanes(moments);
        if (group < arguments.groups && other == 0) {
            exchange.means[group] = moments.mean;
            exchange.inverse_deviations[group] = inverse_deviation(moments.m2, moments.count, arguments.eps);
        }
    }
    __syncthreads();
    // this block reads nobody's shared memory any more
    cg::cluster_group::arrival_token departure = cluster.barrier_arrive();

    first_mean = exchange.means[first_group];
    next_mean = exchange.means[next_group];
    const float first_inverse = exchange.inverse_deviations[first_group];
    const float next_inverse = exchange.inverse_deviations[next_group];
    float scales[kVec];
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
        scales[i] = (i < in_first ? first_inverse : next_inverse) * weight[i];
        shifts[i] = fmaf(add[i] - (i < in_first ? first_mean : next_mean), scales[i], bias[i]);
    }
    T* const target = arguments.y + (first_row + slot) * arguments.c + channel;
    const int64_t target_stride = int64_t(arguments.slots) * arguments.c;
#pragma unroll 2
    for (int i = 0; i < own_rows; ++i) {
        float values[kVec];
        unpack<T, kVec>(own[i * step], values);
#pragma unroll
        for (int j = 0; j < kVec; ++j) {
            values[j] = fmaf(values[j], scales[j], shifts[j]);
            if (arguments.use_silu) values[j] = silu(values[j]);
        }
        store_pack<T, kVec>(target + i * target_stride, pack<T, kVec>(values));
    }
    cluster.barrier_wait(std::move(departure));  // a block's shared memory must outlast its readers
#endif
}

template <typename T>
cudaError_t launch_cluster(const ClusterArguments<T>& arguments, int samples, int blocks, cudaStream_t stream) {
    const int threads = (arguments.slots * arguments.columns + 31) / 32 * 32;
    const int most_rows = arguments.rows + (arguments.spare_rows > 0 ? 1 : 0);
    const int64_t taken_rows = int64_t(most_rows + arguments.slots - 1) / arguments.slots * arguments.slots;
    const int64_t shared_bytes = taken_rows * arguments.columns * int64_t(sizeof(uint4));
    if (threads > kClusterThreads || shared_bytes > INT32_MAX) return cudaErrorInvalidValue;
    const auto kernel = cluster_kernel<T>;
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared_bytes));
    if (error != cudaSuccess) return told(error);
    // Two blocks to a multiprocessor where they fit: CUDA's own choice may leave room for one.
    error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
    if (error != cudaSuccess) return told(error);
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {unsigned(blocks), 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim =
        dim3(unsigned(blocks), unsigned(arguments.c / (arguments.groups * arguments.group_size)), unsigned(samples));
    config.blockDim = dim3(unsigned(threads));
    config.dynamicSmemBytes = size_t(shared_bytes);
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return told(cudaLaunchKernelEx(&config, kernel, arguments));
}

template <typename T>
cudaError_t cluster_typed(const void* x, const void* tail, int64_t tail_c, void* y, const Affine& affine,
    int64_t add_stride, int64_t n, int64_t hw, int64_t c, int64_t groups, float eps, bool use_silu, int cluster_groups,
    int blocks, cudaStream_t stream) {
    constexpr int kVec = kFullPack<T>;
    const int64_t group_size = c / groups;
    const int64_t channels = cluster_groups * group_size;
    // A pack is of two groups at most, of one input, and whole.
    if (group_size < kVec || channels % kVec != 0 || channels / kVec > kClusterThreads || tail_c % kVec != 0)
        return cudaErrorInvalidValue;
    if (n > kMostSamples || c / channels > kMostSamples) return cudaErrorInvalidValue;
    if (!is_aligned(x) || !is_aligned(tail) || !is_aligned(y)) return cudaErrorMisalignedAddress;
    const int columns = int(channels / kVec);
    const ClusterArguments<T> arguments{source_of<T>(x, tail, c, tail_c), static_cast<T*>(y), affine, add_stride,
        int(hw), int(c), int(hw / blocks), int(hw % blocks), int(group_size), cluster_groups, columns,
        kClusterThreads / columns, eps, use_silu};
    return launch_cluster(arguments, int(n), blocks, stream);
}

}  // namespace
}  // namespace sfast

// cudaSuccess where sfast_group_norm_cluster can run on the current device. Runs nothing.
SFAST_API int32_t sfast_cluster_status() {
    using namespace sfast;
    return made_for(cluster_kernel<__half>, 90);
}

// sfast_group_norm_act in one kernel that reads its input once, on devices of compute capability 9.0 and up.
//   cluster_groups  divides groups; that many are a cluster's share of a sample, 16 at most
//   cluster_blocks  blocks to a cluster, 8 at most: each holds its part of the rows in shared memory
// A group must have at least as many channels as there are elements in 16 bytes, those of cluster_groups and tail_c
// must be multiples of that number, and x, tail and y must be aligned to 16 bytes.
SFAST_API int32_t sfast_group_norm_cluster(const void* x, const void* tail, int64_t tail_c, void* y, const void* weight,
    int32_t weight_dtype, const void* bias, int32_t bias_dtype, const void* channel_add, int32_t channel_add_dtype,
    int64_t channel_add_stride, int64_t n, int64_t hw, int64_t c, int64_t groups, float eps, int32_t dtype,
    int32_t flags, int32_t cluster_groups, int32_t cluster_blocks, void* stream) {
    using namespace sfast;
    if (groups <= 0 || c % groups != 0 || n < 0 || hw < 0 || hw > INT32_MAX || c > INT32_MAX)
        return cudaErrorInvalidValue;
    if (cluster_groups <= 0 || cluster_groups > kMostGroups || groups % cluster_groups != 0)
        return cudaErrorInvalidValue;
    if (cluster_blocks <= 0 || cluster_blocks > kMostBlocks || tail_c < 0 || tail_c > c ||
        (tail_c > 0) != (tail != nullptr)) {
        return cudaErrorInvalidValue;
    }
    if (n == 0 || hw == 0 || c == 0) return cudaSuccess;
    const Affine affine{{weight, weight_dtype}, {bias, bias_dtype}, {channel_add, channel_add_dtype}, 0, 0};
    const bool use_silu = (flags & SFAST_SILU) != 0;
    auto* const queue = static_cast<cudaStream_t>(stream);
    switch (dtype) {
        case SFAST_FLOAT32:
            return cluster_typed<float>(x, tail, tail_c, y, affine, channel_add_stride, n, hw, c, groups, eps, use_silu,
                cluster_groups, cluster_blocks, queue);
        case SFAST_FLOAT16:
            return cluster_typed<__half>(x, tail, tail_c, y, affine, channel_add_stride, n, hw, c, groups, eps,
                use_silu, cluster_groups, cluster_blocks, queue);
        case SFAST_BFLOAT16:
            return cluster_typed<__nv_bfloat16>(x, tail, tail_c, y, affine, channel_add_stride, n, hw, c, groups, eps,
                use_silu, cluster_groups, cluster_blocks, queue);
        default: return cudaErrorInvalidValue;
    }
}
