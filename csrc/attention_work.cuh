// How the queries of attention_kernel.cuh are shared out among its blocks.
#pragma once

#include "hopper.cuh"
#include "tensor_map.cuh"

#if CUDART_VERSION >= 12000

namespace sfast {
namespace {

using hopper::kWarpgroup;
constexpr int kGroupQueries = 64;
constexpr int kKeys = 128;  // of a tile
constexpr int kStages = 4;  // tiles of keys, and of values, that fit into shared memory
constexpr int kQueryStages = 2;
constexpr int kRowBytes = hopper::kSwizzleBytes;
constexpr int kPair = 2;  // blocks of a cluster
constexpr int kGroupBytes = kGroupQueries * kRowBytes;
constexpr int kTileBytes = kKeys * kRowBytes;

// What the size of a head decides. A thread that computes needs 64 registers for scores and half a head for the sum:
// heads of 64 leave four warpgroups too few of the 65536 that a multiprocessor has. What they ask for is what all had
// at the start, 96 or 128 each.
template <int kHead>
struct Block {
    static constexpr int kComputing = kHead == 40 ? 4 : 3;  // warpgroups
    static constexpr int kThreads = (kComputing + 1) * kWarpgroup;
    static constexpr int kQueries = kComputing * kGroupQueries;  // of a tall tile
    static constexpr int kLowQueries = kQueries - kGroupQueries;
    static constexpr int kComputingRegisters = kComputing == 4 ? 112 : 160;
    static constexpr int kLoadingRegisters = kComputing == 4 ? 24 : 32;
    static constexpr int kSharedBytes =
        hopper::kSwizzleAtomBytes + kQueryStages * kComputing * kGroupBytes + 2 * kStages * kTileBytes;
};

// How many tall and low tiles a head has; the tall ones come first.
struct HeadCut {
    int tall, low;
};

// What the blocks do, one tile after the other.
struct Plan {
    HeadCut first, rest;  // of the first `first_heads` heads of all images, and of the others
    int first_heads;
    int tall_tiles;  // of all heads; the low ones come behind them
    int alone;       // tiles that are a block's; those behind them, of `tiles`, are a pair's
    int tiles;
    int blocks;  // of the grid that take part, in clusters of two
    int copies;  // of each result: 2 where the second half of the images gets the first one's
};

struct AttentionArguments {
    CUtensorMap q, k, v;
    void* out;  // [batch, queries, heads, head]
    int heads, queries, keys;
    float factor;  // scale * log2(e)
    Plan all;
    // Of a kernel for images whose second half may be the first one again:
    Plan half;              // for the first half alone
    const int32_t* differ;  // 0: it is
    int64_t half_elements;  // of `out`
};

#ifdef SFAST_HOPPER

// What a block has to do: the queries of so many warpgroups from the first on, of a head, and the tiles of keys [begin,
// end).
struct Work {
    int first, groups, head, image;
    int begin, end;
    bool paired;  // the rest of the keys is the other block's of the cluster
};

// What a block takes as number `turn`: tiles of its own, then one that is a pair's. At or behind `tiles` if there is
// nothing more.
__device__ __forceinline__ int tile_of(const Plan& plan, int turn) {
    const int own = int(blockIdx.x) + turn * plan.blocks;
    if (own < plan.alone) return own;
    return own < plan.alone + plan.blocks ? plan.alone + int(blockIdx.x) / kPair : plan.tiles;
}

template <int kHead>
__device__ __forceinline__ Work work_at(const AttentionArguments& arguments, const Plan& plan, int rank, int tile) {
    Work work;
    work.paired = tile >= plan.alone;
    const bool low = tile >= plan.tall_tiles;
    const auto count = [&](const HeadCut& cut) { return low ? cut.low : cut.tall; };
    const int index = low ? tile - plan.tall_tiles : tile, before_rest = plan.first_heads * count(plan.first);
    const bool in_rest = index >= before_rest;
    const HeadCut& cut = in_rest ? plan.rest : plan.first;
    const int at = in_rest ? index - before_rest : index, head = at / count(cut) + (in_rest ? plan.first_heads : 0);
    work.first = at % count(cut) * (low ? Block<kHead>::kLowQueries : Block<kHead>::kQueries) +
                 (low ? cut.tall * Block<kHead>::kQueries : 0);
    work.groups = Block<kHead>::kComputing - (low ? 1 : 0);
    work.head = head % arguments.heads;
    work.image = head / arguments.heads;
    const int all = (arguments.keys + kKeys - 1) / kKeys, half = (all + 1) / 2;
    work.begin = work.paired && rank == 1 ? half : 0;
    work.end = work.paired && rank == 0 ? half : all;
    return work;
}

#endif

}  // namespace
}  // namespace sfast

#endif
