// Captured graphs, edited before they are instantiated.
//
// cuBLASLt and cuDNN zero a counter in front of some of their kernels. In a graph that is a memset node, and a kernel behind one starts 3 to 6 us
// late (H100, CUDA 13), behind another kernel 0.5: as a kernel of one block the same write takes 0.9, and 0.5 on each side.
#include <vector>

#include "device.cuh"
#include "sfast.h"

namespace sfast {
namespace {

constexpr size_t kMostBytes = 4096;  // that one block writes as fast as any other kernel starts
constexpr int kThreads = 128;

template <typename T>
__global__ void fill_kernel(T* out, T value, int count) {
    for (int i = threadIdx.x; i < count; i += kThreads) out[i] = value;
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

// The nodes that `query` gives of `node`. CUDA 13 asks for the edges' data as well. Without a place to put it, an edge that is not of the usual kind
// is an error.
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

template <typename T>
cudaError_t add_fill(cudaGraph_t graph, const Nodes& before, const cudaMemsetParams& memset, cudaGraphNode_t* node) {
    T* out = static_cast<T*>(memset.dst);
    T value = T(memset.value);
    int count = int(memset.width);
    void* arguments[] = {&out, &value, &count};
    cudaKernelNodeParams params{};
    params.func = reinterpret_cast<void*>(&fill_kernel<T>);
    params.gridDim = dim3(1);
    params.blockDim = dim3(kThreads);
    params.kernelParams = arguments;
    return cudaGraphAddKernelNode(node, graph, before.data(), before.size(), &params);
}

// What a query returns where there are edges that its answer has no place for. CUDA has a name for it from 12.3 on.
constexpr int kLossyQuery = 402;

// A kernel in the place of a memset node, unless that is too large or none of the usual edges lead to it. On an error the memset is where it was.
cudaError_t replace(cudaGraph_t graph, cudaGraphNode_t node, int32_t* replaced) {
    cudaMemsetParams memset;
    cudaError_t error = cudaGraphMemsetNodeGetParams(node, &memset);
    if (error != cudaSuccess) return error;
    if (memset.height != 1 || memset.width * memset.elementSize > kMostBytes) return cudaSuccess;
    Nodes before, behind;
    error = neighbours(cudaGraphNodeGetDependencies, node, &before);
    if (error == cudaSuccess) error = neighbours(cudaGraphNodeGetDependentNodes, node, &behind);
    if (error != cudaSuccess) {
        told(error);
        return int(error) == kLossyQuery ? cudaSuccess : error;
    }
    cudaGraphNode_t fill = nullptr;
    if (memset.elementSize == 1) error = add_fill<uint8_t>(graph, before, memset, &fill);
    else if (memset.elementSize == 2) error = add_fill<uint16_t>(graph, before, memset, &fill);
    else error = add_fill<uint32_t>(graph, before, memset, &fill);
    if (error != cudaSuccess) return error;
    const Nodes from(behind.size(), fill);
    if (!behind.empty()) error = add_edges(graph, from.data(), behind.data(), behind.size());
    if (error != cudaSuccess) {
        cudaGraphDestroyNode(fill);  // not in front of all that is behind the memset
        return error;
    }
    error = cudaGraphDestroyNode(node);  // with its edges
    if (error == cudaSuccess) ++*replaced;
    return error;
}

}  // namespace
}  // namespace sfast

SFAST_API int32_t sfast_graph_replace_memsets(void* graph, int32_t* replaced) {
    using namespace sfast;
    *replaced = 0;
    auto* const whole = static_cast<cudaGraph_t>(graph);
    Nodes nodes, memsets;
    cudaError_t error = listed([&](cudaGraphNode_t* list, size_t* count) { return cudaGraphGetNodes(whole, list, count); }, &nodes);
    if (error != cudaSuccess) return told(error);
    for (cudaGraphNode_t node : nodes) {
        cudaGraphNodeType type;
        error = cudaGraphNodeGetType(node, &type);
        if (error != cudaSuccess) return told(error);
        if (type == cudaGraphNodeTypeMemAlloc || type == cudaGraphNodeTypeMemFree) return cudaSuccess;  // nothing may be taken out of such a graph
        if (type == cudaGraphNodeTypeMemset) memsets.push_back(node);
    }
    for (cudaGraphNode_t node : memsets) {
        error = replace(whole, node, replaced);
        if (error != cudaSuccess) return told(error);
    }
    return cudaSuccess;
}
