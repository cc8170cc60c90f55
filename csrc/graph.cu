// Captured graphs, edited before they are instantiated.
//
// cuBLASLt and cuDNN zero a counter in front of some of their kernels. In a graph that is a memset node, and a kernel
// behind one starts 3 to 6 us late (H100, CUDA 13), behind another kernel 0.5: as a kernel of one block the same write
// takes 0.9, and 0.5 on each side. Counters that each have memory of their own, in which nothing else is written
// before, are zeroed by one kernel in front of all.
#include <algorithm>
#include <vector>

#include "device.cuh"
#include "sfast.h"

namespace sfast {
namespace {

constexpr size_t kMostBytes = 4096;  // that one block writes as fast as any other kernel starts
constexpr int kThreads = 128;
constexpr int kUnit = 16;  // bytes that a thread zeroes

template <typename T>
__global__ void fill_kernel(T* out, T value, int count) {
    for (int i = threadIdx.x; i < count; i += kThreads) out[i] = value;
}

__global__ void zero_kernel(uint4* out, int64_t count) {
    const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (i < count) out[i] = uint4{};
}

using Nodes = std::vector<cudaGraphNode_t>;

// The nodes that `list` gives.
template <typename List>
cudaError_t listed(List list, Nodes* nodes) {
    size_t count = 0;
    cudaError_t error = list(nullptr, &count);
    nodes->resize(count);
    if (error == cudaSuccess && count > 0) error = list(nodes->data(), &count);
    return error;
}

// The nodes that `query` gives of `node`. CUDA 13 asks for the edges' data as well. Without a place to put it, an edge
// that is not of the usual kind is an error.
template <typename Query>
cudaError_t neighbours(Query query, cudaGraphNode_t node, Nodes* nodes) {
    const auto list = [&](cudaGraphNode_t* out, size_t* count) {
#if CUDART_VERSION >= 13000
        return query(node, out, nullptr, count);
#else
        return query(node, out, count);
#endif
    };
    return listed(list, nodes);
}

cudaError_t add_edges(cudaGraph_t graph, const cudaGraphNode_t* from, const cudaGraphNode_t* to, size_t count) {
#if CUDART_VERSION >= 13000
    return cudaGraphAddDependencies(graph, from, to, nullptr, count);
#else
    return cudaGraphAddDependencies(graph, from, to, count);
#endif
}

cudaError_t add_kernel(
    cudaGraph_t graph, const Nodes& before, void* kernel, unsigned blocks, void** arguments, cudaGraphNode_t* node) {
    cudaKernelNodeParams params{};
    params.func = kernel;
    params.gridDim = dim3(blocks);
    params.blockDim = dim3(kThreads);
    params.kernelParams = arguments;
    return cudaGraphAddKernelNode(node, graph, before.data(), before.size(), &params);
}

template <typename T>
cudaError_t add_fill(cudaGraph_t graph, const Nodes& before, const cudaMemsetParams& memset, cudaGraphNode_t* node) {
    T* out = static_cast<T*>(memset.dst);
    T value = T(memset.value);
    int count = int(memset.width);
    void* arguments[] = {&out, &value, &count};
    return add_kernel(graph, before, reinterpret_cast<void*>(&fill_kernel<T>), 1, arguments, node);
}

// What a query returns where there are edges that its answer has no place for. CUDA has a name for it from 12.3 on.
constexpr int kLossyQuery = 402;

struct Memset {
    cudaGraphNode_t node;
    cudaMemsetParams params;

    size_t bytes() const {
        return params.height > 1 ? params.pitch * params.height : params.width * params.elementSize;
    }
    uintptr_t begin() const { return reinterpret_cast<uintptr_t>(params.dst); }
    uintptr_t end() const { return begin() + bytes(); }
    bool small() const { return params.height == 1 && bytes() <= kMostBytes; }
    bool overlaps(const Memset& other) const { return begin() < other.end() && other.begin() < end(); }
};

using Memsets = std::vector<Memset>;

// The memset nodes, less those of graphs within the graph; none where it allocates memory, because nothing may be taken
// out of such a one.
cudaError_t memsets_of(cudaGraph_t graph, Memsets* memsets) {
    Nodes nodes;
    cudaError_t error =
        listed([&](cudaGraphNode_t* list, size_t* count) { return cudaGraphGetNodes(graph, list, count); }, &nodes);
    if (error != cudaSuccess) return error;
    for (cudaGraphNode_t node : nodes) {
        cudaGraphNodeType type;
        error = cudaGraphNodeGetType(node, &type);
        if (error != cudaSuccess) return error;
        if (type == cudaGraphNodeTypeMemAlloc || type == cudaGraphNodeTypeMemFree) {
            memsets->clear();
            return cudaSuccess;
        }
        if (type != cudaGraphNodeTypeMemset) continue;
        Memset memset{node, {}};
        error = cudaGraphMemsetNodeGetParams(node, &memset.params);
        if (error != cudaSuccess) return error;
        memsets->push_back(memset);
    }
    return cudaSuccess;
}

// A kernel in the place of a memset. On an error the memset is where it was.
cudaError_t replace(cudaGraph_t graph, const Memset& memset, const Nodes& before, const Nodes& behind) {
    cudaGraphNode_t fill = nullptr;
    cudaError_t error;
    if (memset.params.elementSize == 1)
        error = add_fill<uint8_t>(graph, before, memset.params, &fill);
    else if (memset.params.elementSize == 2)
        error = add_fill<uint16_t>(graph, before, memset.params, &fill);
    else
        error = add_fill<uint32_t>(graph, before, memset.params, &fill);
    if (error != cudaSuccess) return error;
    const Nodes from(behind.size(), fill);
    if (!behind.empty()) error = add_edges(graph, from.data(), behind.data(), behind.size());
    if (error != cudaSuccess) {
        cudaGraphDestroyNode(fill);  // not in front of all that is behind the memset
        return error;
    }
    return cudaGraphDestroyNode(memset.node);  // with its edges
}

// What is behind a memset comes behind what was before it, and the memset goes. On an error it is where it was: edges
// past it change nothing.
cudaError_t bypass(cudaGraph_t graph, const Memset& memset, const Nodes& before, const Nodes& behind) {
    Nodes from, to;
    for (cudaGraphNode_t after : behind) {
        Nodes already;  // an edge that is there can't be added
        const cudaError_t error = neighbours(cudaGraphNodeGetDependencies, after, &already);
        if (error != cudaSuccess) return error;
        for (cudaGraphNode_t earlier : before) {
            if (std::find(already.begin(), already.end(), earlier) != already.end()) continue;
            from.push_back(earlier);
            to.push_back(after);
        }
    }
    const cudaError_t error = from.empty() ? cudaSuccess : add_edges(graph, from.data(), to.data(), from.size());
    return error == cudaSuccess ? cudaGraphDestroyNode(memset.node) : error;
}

// The memory of counters: [begin, end).
struct Counters {
    uintptr_t begin, end;

    // Whether a memset zeroes some of it that no other writes: two would zero one counter for two kernels, one behind
    // the other.
    bool have(const Memset& memset, const Memsets& all) const {
        if (memset.params.value != 0 || memset.params.height != 1 || memset.begin() < begin || memset.end() > end)
            return false;
        return std::none_of(all.begin(), all.end(),
            [&](const Memset& other) { return other.node != memset.node && other.overlaps(memset); });
    }

    // A kernel that zeroes all of it, before anything else in the graph. On an error there is none.
    cudaError_t zero_first(cudaGraph_t graph) const {
        Nodes first;
        cudaError_t error = listed(
            [&](cudaGraphNode_t* list, size_t* count) { return cudaGraphGetRootNodes(graph, list, count); }, &first);
        if (error != cudaSuccess) return error;
        auto* out = reinterpret_cast<uint4*>(begin);
        int64_t count = int64_t(end - begin) / kUnit;
        void* arguments[] = {&out, &count};
        const auto blocks = unsigned((count + kThreads - 1) / kThreads);
        cudaGraphNode_t zero = nullptr;
        error = add_kernel(graph, {}, reinterpret_cast<void*>(&zero_kernel), blocks, arguments, &zero);
        if (error != cudaSuccess) return error;
        const Nodes from(first.size(), zero);
        error = add_edges(graph, from.data(), first.data(), first.size());
        if (error != cudaSuccess) cudaGraphDestroyNode(zero);  // what it isn't in front of may be counting already
        return error;
    }
};

}  // namespace
}  // namespace sfast

// Puts a kernel in the place of each small memset node of `graph` (a cudaGraph_t that isn't instantiated), which writes
// the same in less time. Those that zero parts of the memory of counters, each another part, are taken out: one kernel
// before all other nodes zeroes that memory. Counts in `replaced` the memsets that are gone.
//   counters  `counters_bytes` bytes on the device, multiples of 16 both; or null, 0. Must be no memory that the
//             graph's nodes use otherwise: whatever uses a counter is behind its memset, and what is there before and
//             behind a replay matters to nobody
// Leaves a graph alone that allocates memory. On an error the graph computes what it did: a memset may be done twice.
// Works on the current device, which must be the graph's.
SFAST_API int32_t sfast_graph_replace_memsets(void* graph, void* counters, int64_t counters_bytes, int32_t* replaced) {
    using namespace sfast;
    *replaced = 0;
    const auto address = reinterpret_cast<uintptr_t>(counters);
    if (counters_bytes < 0 || counters_bytes % kUnit != 0 || address % kUnit != 0) return cudaErrorInvalidValue;
    const Counters zeroed{address, address + uintptr_t(counters_bytes)};
    auto* const whole = static_cast<cudaGraph_t>(graph);
    Memsets memsets;
    cudaError_t error = memsets_of(whole, &memsets);
    if (error != cudaSuccess) return told(error);
    std::vector<bool> ahead;  // whether the kernel in front does what a memset does
    for (const Memset& memset : memsets) ahead.push_back(zeroed.have(memset, memsets));
    // Before a memset is taken out: on an error from then on those that are left do no harm.
    if (std::find(ahead.begin(), ahead.end(), true) != ahead.end()) error = zeroed.zero_first(whole);
    for (size_t i = 0; i < memsets.size() && error == cudaSuccess; ++i) {
        const Memset& memset = memsets[i];
        if (!ahead[i] && !memset.small()) continue;
        Nodes before, behind;
        error = neighbours(cudaGraphNodeGetDependencies, memset.node, &before);
        if (error == cudaSuccess) error = neighbours(cudaGraphNodeGetDependentNodes, memset.node, &behind);
        if (error == cudaSuccess)
            error = ahead[i] ? bypass(whole, memset, before, behind) : replace(whole, memset, before, behind);
        if (error == cudaSuccess) {
            ++*replaced;
        } else if (int(error) == kLossyQuery) {  // edges that aren't known here: this one stays
            told(error);
            error = cudaSuccess;
        }
    }
    return told(error);
}
