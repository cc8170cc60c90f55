// What a kernel for compute capability 9.0a says in PTX: thread block clusters, mbarriers, wgmma. One function an instruction.
//
// Only code under SFAST_HOPPER may call these. Addresses in shared memory are 32-bit. A barrier's phase is waited for by its parity: 0 for
// its first phase.
#pragma once

#include <cuda_runtime.h>
#include <stdint.h>

// Defined where the code that is being compiled may use wgmma and setmaxnreg: for sm_90a, not for sm_90, nor for PTX of older ones.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) && CUDART_VERSION >= 12000
#define SFAST_HOPPER 1
#endif

namespace sfast::hopper {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) { return uint32_t(__cvta_generic_to_shared(pointer)); }

// --- Registers and named barriers ------------------------------------------------------------------------------------------------

// A warpgroup gives registers back, or waits for more: it has `kCount` a thread from here on.
template <int kCount>
__device__ __forceinline__ void shrink_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void grow_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

// Named barrier `id` of `threads` threads, those that arrive and those that wait together. 0 is __syncthreads'.
__device__ __forceinline__ void named_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_wait(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

// --- Clusters --------------------------------------------------------------------------------------------------------------------

__device__ __forceinline__ uint32_t cluster_rank() {
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// All threads of the cluster's blocks that are still there meet; what they wrote to shared memory before is seen after.
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" ::: "memory");
}

// Where block `rank` of the cluster has what the own block has at `address`.
__device__ __forceinline__ uint32_t in_block(uint32_t address, uint32_t rank) {
    uint32_t mapped;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
    return mapped;
}

// Two floats to shared memory of any block of the cluster (an address from in_block), and from the own block's.
__device__ __forceinline__ void store_in_cluster(uint32_t address, float first, float second) {
    asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(first), "f"(second) : "memory");
}
__device__ __forceinline__ float2 load_pair(uint32_t address) {
    float2 pair;
    asm volatile("ld.shared::cta.v2.f32 {%0, %1}, [%2];" : "=f"(pair.x), "=f"(pair.y) : "r"(address) : "memory");
    return pair;
}

// --- mbarriers -------------------------------------------------------------------------------------------------------------------

__device__ __forceinline__ void barrier_init(uint32_t barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// After barrier_init, before __syncthreads: TMA sees the barriers as they were made.
__device__ __forceinline__ void barrier_init_done() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// One arrival.
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// One arrival, and `bytes` more that TMA must bring before the phase ends.
__device__ __forceinline__ void barrier_arrive_expecting(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Until the phase of this parity is over. The instruction itself waits only for a while.
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
    uint32_t over = 0;
    while (over == 0) {
        asm volatile(
            "{\n\t.reg .pred over;\n\t"
            "mbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2;\n\t"
            "selp.u32 %0, 1, 0, over;\n\t}"
            : "=r"(over)
            : "r"(barrier), "r"(parity)
            : "memory");
    }
}

// --- wgmma -----------------------------------------------------------------------------------------------------------------------

// Of a row of an operand: TMA's and wgmma's widest swizzle, which exchanges the row's 16-byte units by the row's number modulo 8.
inline constexpr int kSwizzleBytes = 128;
inline constexpr int kSwizzleAtomBytes = 8 * kSwizzleBytes;  // buffers begin on a multiple of this

// Describes an operand to wgmma: rows of 64 16-bit elements, in groups of 8 one behind the other, swizzled. Fields: at bit 0 address / 16,
// at 16 the leading offset (without meaning here), at 32 the offset of a group of rows / 16, at 62 the swizzle. Where rows lie along the
// depth, stepping along it inside the 128 bytes is adding bytes / 16.
__device__ __forceinline__ uint64_t operand(uint32_t address) {
    return uint64_t((address & 0x3ffff) / 16) | uint64_t(1) << 16 | uint64_t(kSwizzleAtomBytes / 16) << 32 | uint64_t(1) << 62;
}

// Accumulators that were touched before are ready for wgmma.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Until at most kLeft groups of this warpgroup's are under way.
template <int kLeft>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
}

}  // namespace sfast::hopper
