// One kernel of conv2d.cu: TMA gathers the pixels of each step out of the image as it brings them ("im2col"), zeros for
// those outside, for any taps and strides. conv2d_tile.cuh has the rest.
#pragma once

#include "conv2d_tile.cuh"

#if CUDART_VERSION >= 12000

namespace sfast {
namespace {

#ifdef SFAST_HOPPER

template <typename Shape>
struct Gather {
    static constexpr int kStageBytes = Shape::kPixelBytes + Shape::kWeightBytes;
    static constexpr int kStages = kBufferBytes / kStageBytes;
    static constexpr int kBarriers = 2 * kStages;
    static_assert(kBarriers * sizeof(uint64_t) <= kBarrierBytes, "the barriers have their place");

    const Conv2dArguments& arguments;
    Member member;
    uint32_t buffers, stores, full, empty;

    __device__ __forceinline__ Gather(const Conv2dArguments& all, const void* shared, const uint64_t* barriers)
        : arguments(all),
          member(all),
          buffers(hopper::first_buffer(shared)),
          stores(buffers + kStages * kStageBytes),
          full(hopper::shared_address(barriers)),
          empty(full + 8 * kStages) {}

    __device__ __forceinline__ uint32_t pixels(uint32_t stage) const { return buffers + stage * kStageBytes; }
    __device__ __forceinline__ uint32_t weight(uint32_t stage) const { return pixels(stage) + Shape::kPixelBytes; }

    __device__ __forceinline__ void init_barriers() const {
        // for this block; as many have this one as theirs
        const int loaders = arguments.sharing_rows + arguments.sharing_columns - 1;
        for (int stage = 0; stage < kStages; ++stage) {
            hopper::barrier_init(full + 8 * stage, 1);
            hopper::barrier_init(empty + 8 * stage, loaders * kWarps);
        }
        hopper::barrier_init_done();
    }

    // One thread brings the steps of all tiles: its part of the pixels to those with the same pixels, of the weight to
    // those with the same channels. A block whose rows or columns are all past the end brings zeros: the others need
    // its part.
    __device__ __forceinline__ void load() const {
        const int part_rows = Shape::kRows / arguments.sharing_columns;
        const uint32_t part = member.column * part_rows * kDepth * 2;
        const uint16_t same_pixels = member.same_pixels();
        Ring ring;
        for (int group = member.cluster; group < arguments.row_groups * arguments.column_groups;
            group += member.clusters) {
            const Place place = place_of<Shape>(member, group);
            if (arguments.has_residual && member.split == 0) {
                for (int box = 0; box < Shape::kResidualBoxes; ++box) {
                    const uint32_t barrier = ring.expect(full, empty, kResidualRows * kDepth * 2);
                    load_residual<Shape>(member, pixels(ring.stage), barrier, box, place);
                    ring.advance(kStages);
                }
            }
            const int first = place.row + member.column * part_rows, within = first % arguments.image_pixels;
            const int image = first / arguments.image_pixels;
            const int row = within / arguments.out_width * arguments.stride_h - arguments.pad_h;
            const int column = within % arguments.out_width * arguments.stride_w - arguments.pad_w;
            for (int step = place.taps.begin; step < place.taps.end; ++step) {
                const int tap = step / arguments.depth_blocks, block = step % arguments.depth_blocks;
                const uint32_t barrier = ring.expect(full, empty, kStageBytes);
                hopper::load_pixels(pixels(ring.stage) + part, &arguments.x, barrier, block * kDepth, column, row,
                    image, tap % arguments.tap_columns + place.phase % 2, tap / arguments.tap_columns + place.phase / 2,
                    same_pixels);
                load_weight<Shape>(member, arguments.weight, weight(ring.stage), barrier, step * kDepth,
                    place.phase * arguments.channels + place.column);
                ring.advance(kStages);
            }
            for (int block = place.shortcut.begin; block < place.shortcut.end; ++block) {
                const uint32_t barrier = ring.expect(full, empty, kStageBytes);
                load_shortcut(arguments, pixels(ring.stage) + part, barrier, block, first, same_pixels);
                load_weight<Shape>(
                    member, arguments.shortcut_weight, weight(ring.stage), barrier, block * kDepth, place.column);
                ring.advance(kStages);
            }
        }
    }

    // A warpgroup computes its rows of all tiles.
    template <typename T>
    __device__ __forceinline__ void compute(int warp) const {
        constexpr int kBlocks = Shape::kGroupRows / 64;
        const int lane = threadIdx.x % 32, group_row = warp / 4 * Shape::kGroupRows + warp % 4 * kWarpRows;
        // Who is told that a warp is done with a step: one lane each tells this block and the two that bring it their
        // parts.
        const bool tells =
            lane == 0 || (lane == 1 && arguments.sharing_rows > 1) || (lane == 2 && arguments.sharing_columns > 1);
        const int told_row = lane == 1 ? member.row ^ 1 : member.row,
                  told_column = lane == 2 ? member.column ^ 1 : member.column;
        const uint32_t told = hopper::in_block(empty, tells ? member.rank_of(told_row, told_column, member.split) : 0);
        const auto release = [&](uint32_t stage) {
            if (tells) hopper::barrier_arrive_in_cluster(told + 8 * stage);
        };

        Ring ring;
        Rows<T, Shape::kSums> rows[kBlocks];
        int turn = 0;
        const auto add_step = [&] {
            ring.wait(full);
            const uint64_t left = hopper::operand(pixels(ring.stage) + warp / 4 * (Shape::kPixelBytes / kComputing));
            const uint64_t right = hopper::operand(weight(ring.stage));
            hopper::wgmma_fence();
#pragma unroll
            for (int k = 0; k < kDepth / 16; ++k) {
#pragma unroll
                for (int i = 0; i < kBlocks; ++i) {  // 64 rows further on, in units of 16 bytes
                    add_products<T>(rows[i].sum, left + 2 * k + i * (64 * kDepth * 2 / 16), right + 2 * k);
                }
            }
            hopper::wgmma_commit();
        };
        for (int group = member.cluster; group < arguments.row_groups * arguments.column_groups;
            group += member.clusters) {
            const Place place = place_of<Shape>(member, group);
#pragma unroll
            for (int i = 0; i < kBlocks; ++i) {
                rows[i].begin(arguments, member.split == 0, place.row + group_row + i * 64 + lane / 4,
                    place.column + lane % 4 * 2);
            }
            if (arguments.has_residual && member.split == 0) {
#pragma unroll
                for (int box = 0; box < Shape::kResidualBoxes; ++box) {
                    constexpr int kParts = Shape::kRows / kResidualRows;
                    ring.wait(full);
#pragma unroll
                    for (int i = 0; i < kBlocks; ++i) {
                        const int row = group_row + i * 64;
                        if (row / kResidualRows != box % kParts) continue;
                        rows[i].add_residual(
                            box / kParts * kDepth, pixels(ring.stage), row % kResidualRows + lane / 4, lane);
                    }
                    __syncwarp();
                    release(ring.stage);
                    ring.advance(kStages);
                }
            }
            // The first step stands before the loop: in it, the compiler would let each step begin only when the one
            // before has ended.
            add_step();
            uint32_t before = ring.stage;
            ring.advance(kStages);
            for (int left = place.taps.count() + place.shortcut.count() - 1; left > 0; --left) {
                add_step();
                hopper::wgmma_wait<1>();  // this step is under way, the one before is done
                release(before);
                before = ring.stage;
                ring.advance(kStages);
            }
            hopper::wgmma_wait<0>();
            release(before);
#pragma unroll
            for (int i = 0; i < kBlocks; ++i) {
                if (arguments.splits > 1 && !rows[i].join(member, buffers, warp, lane)) continue;
                const int row = place.row + group_row + i * 64;
                if (row >= arguments.pixels) continue;
                const uint32_t store = stores + warp * kStores * kStoreBytes;
                rows[i].activate(arguments.act);
                if (arguments.phases > 1)
                    rows[i].write_doubled(arguments, store, place.phase, row, place.column, lane);
                else
                    rows[i].write(arguments, store, turn, row, place.column, lane);
            }
        }
    }
};

#endif  // SFAST_HOPPER

template <typename T, typename Shape>
__global__ void __launch_bounds__(kBlockThreads, 1)
    conv2d_gather_kernel(const __grid_constant__ Conv2dArguments arguments) {
#ifdef SFAST_HOPPER
    extern __shared__ uint8_t shared[];
    __shared__ uint64_t barriers[Gather<Shape>::kBarriers];
    const Gather<Shape> gather(arguments, shared, barriers);
    if (threadIdx.x == 0) gather.init_barriers();
    part_warpgroups(arguments, [&] { gather.load(); }, [&](int warp) { gather.template compute<T>(warp); });
#endif
}

}  // namespace
}  // namespace sfast
#endif
