// Captured graphs, edited before they are instantiated.
//
// cuBLASLt and cuDNN zero a counter in front of some of their kernels. In a graph that is a memset node, and a kernel behind one starts 3 to 6 us
// late (H100, CUDA 13), behind another kernel 0.5: as a kernel of one block the same write takes 0.9 and 0.5. Where each such kernel has a counter
// of its own, one kernel in front writes them all.
#include <algorithm>
#include <vector>

#include "device.cuh"
#include "sfast.h"

namespace sfast {
namespace {

constexpr size_t kMostBytes = 4096;  // that one block writes as fast as any other kernel starts
constexpr int kThreads = 128;
constexpr int kUnit = 16;  // bytes that a thread zeroes at a time

using Node = cudaGraphNode_t;
using Nodes = std::vector<Node>;

template <typename T>
__global__ void fill_kernel(T* out, T value, int count) {
    for (int i = threadIdx.x; i < count; i += kThreads) out[i] = value;
}

__global__ void zero_kernel(uint4* out, int64_t count) {
    const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (i < count) out[i] = uint4{};
}

// CUDA 13 asks for the edges' data as well. Without a place to put it, an edge that is not of the usual kind is an error.
cudaError_t nodes_before(Node node, Node* nodes, size_t* count) {
#if CUDART_VERSION >= 13000
    return cudaGraphNodeGetDependencies(node, nodes, nullptr, count);
#else
    return cudaGraphNodeGetDependencies(node, nodes, count);
#endif
}

cudaError_t nodes_behind(Node node, Node* nodes, size_t* count) {
#if CUDART_VERSION >= 13000
    return cudaGraphNodeGetDependentNodes(node, nodes, nullptr, count);
#else
    return cudaGraphNodeGetDependentNodes(node, nodes, count);
#endif
}

cudaError_t add_edge(cudaGraph_t graph, Node from, Node to) {
#if CUDART_VERSION >= 13000
    return cudaGraphAddDependencies(graph, &from, &to, nullptr, 1);
#else
    return cudaGraphAddDependencies(graph, &from, &to, 1);
#endif
}

// The nodes that `list` gives.
template <typename List>
cudaError_t listed(Nodes* nodes, List list) {
    size_t count = 0;
    cudaError_t error = list(nullptr, &count);
    nodes->resize(count);
    if (error == cudaSuccess && count > 0) error = list(nodes->data(), &count);
    return error;
}

cudaError_t neighbours(Node node, Nodes* before, Nodes* behind) {
    const cudaError_t error = listed(before, [&](Node* nodes, size_t* count) { return nodes_before(node, nodes, count); });
    if (error != cudaSuccess) return error;
    return listed(behind, [&](Node* nodes, size_t* count) { return nodes_behind(node, nodes, count); });
}

struct Memset {
    Node node;
    cudaMemsetParams params;
    bool apart;  // zeroes a part of the workspaces that no other does

    size_t bytes() const { return params.height > 1 ? params.pitch * params.height : params.width * params.elementSize; }
    uintptr_t begin() const { return reinterpret_cast<uintptr_t>(params.dst); }
    uintptr_t end() const { return begin() + bytes(); }
    bool small() const { return params.height == 1 && bytes() <= kMostBytes; }
};

cudaError_t add_kernel(cudaGraph_t graph, const Nodes& before, void* kernel, unsigned blocks, void** arguments, Node* node) {
    cudaKernelNodeParams params{};
    params.func = kernel;
    params.gridDim = dim3(blocks);
    params.blockDim = dim3(kThreads);
    params.kernelParams = arguments;
    return cudaGraphAddKernelNode(node, graph, before.data(), before.size(), &params);
}

template <typename T>
cudaError_t add_fill(cudaGraph_t graph, const Nodes& before, const cudaMemsetParams& memset, Node* node) {
    T* out = static_cast<T*>(memset.dst);
    T value = T(memset.value);
    int count = int(memset.width);
    void* arguments[] = {&out, &value, &count};
    return add_kernel(graph, before, reinterpret_cast<void*>(&fill_kernel<T>), 1, arguments, node);
}

// A kernel in the place of a memset.
cudaError_t replace(cudaGraph_t graph, const Memset& memset, const Nodes& before, const Nodes& behind) {
    Node fill = nullptr;
    cudaError_t error;
    if (memset.params.elementSize == 1) error = add_fill<uint8_t>(graph, before, memset.params, &fill);
    else if (memset.params.elementSize == 2) error = add_fill<uint16_t>(graph, before, memset.params, &fill);
    else error = add_fill<uint32_t>(graph, before, memset.params, &fill);
    for (size_t i = 0; i < behind.size() && error == cudaSuccess; ++i) error = add_edge(graph, fill, behind[i]);
    return error == cudaSuccess ? cudaGraphDestroyNode(memset.node) : error;  // with its edges
}

// What waited for a memset waits for what that waited for.
cudaError_t bypass(cudaGraph_t graph, const Memset& memset, const Nodes& before, const Nodes& behind) {
    for (Node after : behind) {
        Nodes already;
        cudaError_t error = listed(&already, [&](Node* nodes, size_t* count) { return nodes_before(after, nodes, count); });
        for (size_t i = 0; i < before.size() && error == cudaSuccess; ++i) {
            if (std::find(already.begin(), already.end(), before[i]) == already.end()) error = add_edge(graph, before[i], after);
        }
        if (error != cudaSuccess) return error;
    }
    return cudaGraphDestroyNode(memset.node);
}

// A kernel that zeroes [begin, end), in front of all that has nothing in front of it.
cudaError_t zero_first(cudaGraph_t graph, uintptr_t begin, uintptr_t end) {
    begin = begin / kUnit * kUnit;
    auto* out = reinterpret_cast<uint4*>(begin);
    int64_t count = int64_t(end - begin + kUnit - 1) / kUnit;
    void* arguments[] = {&out, &count};
    Nodes first;
    cudaError_t error = listed(&first, [&](Node* nodes, size_t* number) { return cudaGraphGetRootNodes(graph, nodes, number); });
    if (error != cudaSuccess) return error;
    Node zero = nullptr;
    error = add_kernel(graph, {}, reinterpret_cast<void*>(&zero_kernel), unsigned((count + kThreads - 1) / kThreads), arguments, &zero);
    for (size_t i = 0; i < first.size() && error == cudaSuccess; ++i) error = add_edge(graph, zero, first[i]);
    return error;
}

// The memset nodes; none where the graph allocates memory, because nothing may be taken out of such a one.
cudaError_t memsets_of(cudaGraph_t graph, std::vector<Memset>* memsets) {
    Nodes nodes;
    cudaError_t error = listed(&nodes, [&](Node* list, size_t* count) { return cudaGraphGetNodes(graph, list, count); });
    for (size_t i = 0; i < nodes.size() && error == cudaSuccess; ++i) {
        cudaGraphNodeType type;
        error = cudaGraphNodeGetType(nodes[i], &type);
        if (error != cudaSuccess) break;
        if (type == cudaGraphNodeTypeMemAlloc || type == cudaGraphNodeTypeMemFree) {
            memsets->clear();
            break;
        }
        if (type != cudaGraphNodeTypeMemset) continue;
        Memset memset{nodes[i]};
        error = cudaGraphMemsetNodeGetParams(nodes[i], &memset.params);
        if (error == cudaSuccess) memsets->push_back(memset);
    }
    return error;
}

// Whether a memset zeroes bytes of [begin, end) that no other does.
bool is_apart(const Memset& memset, const std::vector<Memset>& all, uintptr_t begin, uintptr_t end) {
    if (memset.params.value != 0 || memset.params.height > 1 || memset.begin() < begin || memset.end() > end) return false;
    return std::none_of(all.begin(), all.end(), [&](const Memset& other) {
        return other.node != memset.node && other.begin() < memset.end() && memset.begin() < other.end();
    });
}

}  // namespace
}  // namespace sfast

SFAST_API int32_t sfast_graph_replace_memsets(void* graph, const void* apart, int64_t apart_bytes, int32_t* replaced) {
    using namespace sfast;
    *replaced = 0;
    if (apart_bytes < 0) return cudaErrorInvalidValue;
    auto* const whole = static_cast<cudaGraph_t>(graph);
    std::vector<Memset> memsets;
    cudaError_t error = memsets_of(whole, &memsets);
    const auto begin = reinterpret_cast<uintptr_t>(apart), end = begin + uintptr_t(apart_bytes);
    uintptr_t low = end, high = begin;
    for (Memset& memset : memsets) {
        memset.apart = is_apart(memset, memsets, begin, end);
        if (!memset.apart) continue;
        low = std::min(low, memset.begin());
        high = std::max(high, memset.end());
    }
    // First: on an error behind it the memsets that are left do no harm.
    if (error == cudaSuccess && low < high) error = zero_first(whole, low, high);
    for (const Memset& memset : memsets) {
        if (error != cudaSuccess) break;
        if (!memset.apart && !memset.small()) continue;
        Nodes before, behind;
        error = neighbours(memset.node, &before, &behind);
        if (error == cudaErrorLossyQuery) {  // edges that this doesn't know
            told(error);
            error = cudaSuccess;
            continue;
        }
        if (error != cudaSuccess) break;
        error = memset.apart ? bypass(whole, memset, before, behind) : replace(whole, memset, before, behind);
        if (error == cudaSuccess) ++*replaced;
    }
    return told(error);
}
