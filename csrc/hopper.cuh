// What a kernel for compute capability 9.0a says in PTX: thread block clusters, mbarriers, TMA, wgmma. One function an
// instruction.
//
// Only code under SFAST_HOPPER may call these. Addresses in shared memory are 32-bit. A barrier's phase is waited for
// by its parity: 0 for its first phase.
#pragma once

#include <cuda_runtime.h>
#include <stdint.h>

#include "shared_memory.cuh"

// Defined where the code that is being compiled may use wgmma and setmaxnreg: for sm_90a, not for sm_90, nor for PTX of
// older ones.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) && CUDART_VERSION >= 12000
#define SFAST_HOPPER 1
#endif

namespace sfast::hopper {

inline constexpr int kWarpgroup = 128;  // threads

using sfast::load_matrices;
using sfast::shared_address;

// --- Registers and named barriers
// ------------------------------------------------------------------------------------------------

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
__device__ __forceinline__ void named_wait(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// --- Clusters
// ---------------------------------------------------------------------------------------------------------------------

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

__device__ __forceinline__ uint32_t load_word(uint32_t address) {
    uint32_t word;
    asm volatile("ld.shared::cta.u32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
    return word;
}

// Four floats likewise.
__device__ __forceinline__ void store_in_cluster(uint32_t address, float4 four) {
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(four.x), "f"(four.y),
        "f"(four.z), "f"(four.w)
        : "memory");
}
__device__ __forceinline__ void store_four(uint32_t address, float4 four) {
    asm volatile("st.shared::cta.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(four.x), "f"(four.y), "f"(four.z),
        "f"(four.w)
        : "memory");
}
__device__ __forceinline__ float4 load_four(uint32_t address) {
    float4 four;
    asm volatile("ld.shared::cta.v4.f32 {%0, %1, %2, %3}, [%4];"
        : "=f"(four.x), "=f"(four.y), "=f"(four.z), "=f"(four.w)
        : "r"(address)
        : "memory");
    return four;
}

// --- mbarriers
// ---------------------------------------------------------------------------------------------------------------------

__device__ __forceinline__ void barrier_init(uint32_t barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// After barrier_init, before __syncthreads or cluster_sync: TMA and the other blocks see the barriers as they were
// made.
__device__ __forceinline__ void barrier_init_done() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// One arrival, or several.
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier, int count) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

// One arrival at a barrier of any block of the cluster (an address from in_block). What this thread wrote before is not
// thereby seen in other blocks: that (.release.cluster) would be a memory barrier of the whole GPU at every step.
__device__ __forceinline__ void barrier_arrive_in_cluster(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
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

// --- TMA
// ---------------------------------------------------------------------------------------------------------------------

// A map out of the kernel's arguments is fetched now, not when it is first used.
__device__ __forceinline__ void prefetch_map(const void* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// The box at column x of row y, to `target` of each block in `blocks` (bit i: rank i), where it counts at `barrier`.
// What lies outside the tensor comes as zeros and counts as brought.
__device__ __forceinline__ void load_box(
    uint32_t target, const void* map, uint32_t barrier, int x, int y, uint16_t blocks) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(target),
        "l"(map), "r"(barrier), "r"(x), "r"(y), "h"(blocks)
        : "memory");
}

// Pixels as one tap of a convolution takes them (encode_pixels), likewise: from the channel on, and from the column,
// row and image that the first tap takes; the tap's own column and row.
__device__ __forceinline__ void load_pixels(uint32_t target, const void* map, uint32_t barrier, int channel, int column,
    int row, int image, int tap_column, int tap_row, uint16_t blocks) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8}, %9;" ::"r"(target),
        "l"(map), "r"(barrier), "r"(channel), "r"(column), "r"(row), "r"(image), "h"(uint16_t(tap_column)),
        "h"(uint16_t(tap_row)), "h"(blocks)
        : "memory");
}

// A row of an image from a column on, likewise: a box in four dimensions, channels, columns, rows, images.
__device__ __forceinline__ void load_image_row(
    uint32_t target, const void* map, uint32_t barrier, int channel, int column, int row, int image, uint16_t blocks) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(target),
        "l"(map), "r"(barrier), "r"(channel), "r"(column), "r"(row), "r"(image), "h"(blocks)
        : "memory");
}

// What threads wrote to shared memory before is what TMA reads after.
__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Writes the box at column x of row y, as far as it lies inside the tensor.
__device__ __forceinline__ void store_box(const void* map, uint32_t source, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
        "r"(source), "r"(x), "r"(y)
        : "memory");
}
__device__ __forceinline__ void store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Until TMA has read all but the last kLeft stores that this thread has committed: their shared memory may be written
// again.
template <int kLeft>
__device__ __forceinline__ void store_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kLeft) : "memory");
}

// Four 8 x 8 matrices of 16-bit elements out of the registers of a warp. Lane i gives the address of row i % 8 of
// matrix i / 8 and has the elements 2 * (i % 4) and the next one of row i / 4 of each, which is how wgmma leaves its
// accumulators.
__device__ __forceinline__ void store_matrices(uint32_t row, const uint32_t (&words)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(words[0]),
        "r"(words[1]), "r"(words[2]), "r"(words[3])
        : "memory");
}

// Tells the compiler that the registers are in use until here: it takes those of a left operand as free as soon as
// wgmma has been issued, and gives them to others while wgmma reads them. A store that must never run: `never` is
// false, which the compiler must not know.
__device__ __forceinline__ void keep(const uint32_t (&words)[4], bool never, uint32_t address) {
    asm volatile(
        "{\n\t.reg .pred never;\n\t"
        "setp.ne.b32 never, %5, 0;\n\t"
        "@never st.shared::cta.v4.b32 [%4], {%0, %1, %2, %3};\n\t}" ::"r"(words[0]),
        "r"(words[1]), "r"(words[2]), "r"(words[3]), "r"(address), "r"(int32_t(never))
        : "memory");
}

// --- wgmma
// ---------------------------------------------------------------------------------------------------------------------

// Of a row of an operand: TMA's and wgmma's widest swizzle, which exchanges the row's 16-byte units by the row's number
// modulo 8.
inline constexpr int kSwizzleBytes = 128;
inline constexpr int kSwizzleAtomBytes = 8 * kSwizzleBytes;  // buffers begin on a multiple of this

// The first address in `shared` from which such buffers may lie; it costs less than kSwizzleAtomBytes.
__device__ __forceinline__ uint32_t first_buffer(const void* shared) {
    constexpr uint32_t kAtom = kSwizzleAtomBytes;
    return (shared_address(shared) + kAtom - 1) / kAtom * kAtom;
}

// Describes an operand to wgmma: rows of 64 16-bit elements, in groups of 8 one behind the other, swizzled. Fields: at
// bit 0 address / 16, at 16 the leading offset (without meaning here), at 32 the offset of a group of rows / 16, at 62
// the swizzle. Where rows lie along the depth, stepping along it inside the 128 bytes is adding bytes / 16.
__device__ __forceinline__ uint64_t operand(uint32_t address) {
    return uint64_t((address & 0x3ffff) / 16) | uint64_t(1) << 16 | uint64_t(kSwizzleAtomBytes / 16) << 32 |
           uint64_t(1) << 62;
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
