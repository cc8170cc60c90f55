// The other kernel of conv2d.cu, for taps of 3 x 3, stride 1 and padding 1: the pixels that a tile's taps take are
// brought once for all taps.
//
// 64 channels of the rows of the image above, in and below a tile, with a column of zeros at either side, are a window
// in shared memory. The taps take the rows of the product out of it, each pixel by its own address, into registers: at
// 32 x 32 204 pixels come from L2 instead of 9 x 128, which is what limits conv2d_gather.cuh there. conv2d_tile.cuh has
// the rest.
#pragma once

#include <algorithm>

#include "conv2d_tile.cuh"

#if CUDART_VERSION >= 12000

namespace sfast {
namespace {

using WindowTile = Tile<128, 160>;

constexpr int kTaps = 3;     // in a row and in a column
constexpr int kWindows = 2;  // one is computed with while the next is brought
// Three don't hide the loads (2x640x52x76 102 us, conv2d_gather.cuh 86), and a step of the shortcut takes two places
// while the one before has two.
constexpr int kFewestWeightStages = 4, kMostWeightStages = 8;
static_assert(kFewestWeightStages >= 4, "with fewer the shortcut's steps wait for each other for ever");
constexpr int kMostPaddedWidth = 256;  // of a box

// Rows of all images one below the other, each image with a row of zeros above and below it: the first that the taps of
// a pixel take.
__host__ __device__ __forceinline__ int padded_row(int pixel, int height, int width) {
    return pixel / (height * width) * (height + 2) + pixel % (height * width) / width;
}

// The bytes of the largest window of `pixels` pixels of images.
inline int64_t window_bytes_of(int pixels, int height, int width) {
    int rows = 0;
    for (int first = 0; first < pixels; first += WindowTile::kRows) {
        const int last = std::min(first + WindowTile::kRows, pixels) - 1;
        rows = std::max(rows, padded_row(last, height, width) + kTaps - padded_row(first, height, width));
    }
    const int64_t bytes = int64_t(rows) * (width + 2) * kDepth * 2, atom = hopper::kSwizzleAtomBytes;
    return (bytes + atom - 1) / atom * atom;
}

// How many steps of the weight have room beside the windows; fewer than kFewestWeightStages are too few.
inline int weight_stages_of(int64_t window_bytes) {
    return int(
        std::min<int64_t>(kMostWeightStages, (kBufferBytes - kWindows * window_bytes) / WindowTile::kWeightBytes));
}

#ifdef SFAST_HOPPER

struct Window {
    using Shape = WindowTile;
    static constexpr int kBarriers = 2 * (kWindows + kMostWeightStages);
    static_assert(kBarriers * sizeof(uint64_t) <= kBarrierBytes, "the barriers have their place");
    static constexpr int kSteps = kDepth / 16;  // of wgmma's depth, to a step; as many products are under way

    const Conv2dArguments& arguments;
    Member member;
    int row_bytes;
    uint32_t weights, windows, stores;
    uint32_t window_full, window_empty, weight_full, weight_empty;

    __device__ __forceinline__ Window(const Conv2dArguments& all, const void* shared, const uint64_t* barriers)
        : arguments(all),
          member(all),
          row_bytes((all.out_width + 2) * kDepth * 2),
          weights(hopper::first_buffer(shared)),
          windows(weights + all.weight_stages * Shape::kWeightBytes),
          stores(windows + kWindows * all.window_bytes),
          window_full(hopper::shared_address(barriers)),
          window_empty(window_full + 8 * kWindows),
          weight_full(window_empty + 8 * kWindows),
          weight_empty(weight_full + 8 * kMostWeightStages) {}

    __device__ __forceinline__ uint32_t window(uint32_t stage) const {
        return windows + stage * arguments.window_bytes;
    }
    __device__ __forceinline__ uint32_t weight(uint32_t stage) const { return weights + stage * Shape::kWeightBytes; }
    __device__ __forceinline__ int padded_row_of(int pixel) const {
        return padded_row(min(pixel, arguments.pixels - 1), arguments.out_height, arguments.out_width);
    }

    __device__ __forceinline__ void init_barriers() const {
        for (int i = 0; i < kWindows; ++i) {
            hopper::barrier_init(window_full + 8 * i, 1);
            hopper::barrier_init(window_empty + 8 * i, arguments.sharing_columns * kWarps);
        }
        for (int i = 0; i < arguments.weight_stages; ++i) {
            hopper::barrier_init(weight_full + 8 * i, 1);
            hopper::barrier_init(weight_empty + 8 * i, arguments.sharing_rows * kWarps);
        }
        hopper::barrier_init_done();
    }

    // One thread brings the windows and the weights of all tiles, its parts of both. A block whose rows are all past
    // the end brings some all the same: the others need its part of the weight.
    __device__ __forceinline__ void load() const {
        const uint16_t same_pixels = member.same_pixels();
        const int padded_height = arguments.out_height + 2;
        Ring window_ring, weight_ring;
        for (int group = member.cluster; group < arguments.row_groups * arguments.column_groups;
            group += member.clusters) {
            const Place place = place_of<Shape>(member, group);
            if (arguments.has_residual && member.split == 0) {
                for (int box = 0; box < Shape::kResidualBoxes; ++box) {
                    const uint32_t barrier = weight_ring.expect(weight_full, weight_empty, kResidualRows * kDepth * 2);
                    load_residual<Shape>(member, weight(weight_ring.stage), barrier, box, place);
                    weight_ring.advance(arguments.weight_stages);
                }
            }
            const int top = padded_row_of(place.row), rows = padded_row_of(place.row + Shape::kRows - 1) + kTaps - top;
            for (int block = place.taps.begin; block < place.taps.end; ++block) {
                const uint32_t barrier = window_ring.expect(window_full, window_empty, rows * row_bytes);
                for (int i = member.column; i < rows; i += arguments.sharing_columns) {
                    const int row = (top + i) % padded_height - 1, image = (top + i) / padded_height;
                    hopper::load_image_row(window(window_ring.stage) + i * row_bytes, &arguments.x, barrier,
                        block * kDepth, -1, row, image, same_pixels);
                }
                window_ring.advance(kWindows);
                for (int tap = 0; tap < kTaps * kTaps; ++tap) {
                    const uint32_t full = weight_ring.expect(weight_full, weight_empty, Shape::kWeightBytes);
                    load_weight<Shape>(member, arguments.weight, weight(weight_ring.stage), full,
                        (tap * arguments.depth_blocks + block) * kDepth, place.column);
                    weight_ring.advance(arguments.weight_stages);
                }
            }
            // A step of the shortcut takes two places in the weight's ring: its pixels, for this block alone, and its
            // weight.
            for (int block = place.shortcut.begin; block < place.shortcut.end; ++block) {
                const uint32_t pixels_full = weight_ring.expect(weight_full, weight_empty, Shape::kPixelBytes);
                load_shortcut(arguments, weight(weight_ring.stage), pixels_full, block, place.row, member.own());
                weight_ring.advance(arguments.weight_stages);
                const uint32_t full = weight_ring.expect(weight_full, weight_empty, Shape::kWeightBytes);
                load_weight<Shape>(
                    member, arguments.shortcut_weight, weight(weight_ring.stage), full, block * kDepth, place.column);
                weight_ring.advance(arguments.weight_stages);
            }
        }
    }

    // A warpgroup computes its 64 rows of all tiles.
    template <typename T>
    __device__ __forceinline__ void compute(int warp) const {
        const int lane = threadIdx.x % 32, warp_row = warp * kWarpRows;
        // Who is told that a warp is done with a buffer: one lane each tells this block and the one that brings the
        // other part.
        const bool tells_weight = lane < arguments.sharing_rows, tells_window = lane < arguments.sharing_columns;
        const uint32_t told_weight =
            hopper::in_block(weight_empty, member.rank_of(tells_weight ? lane : 0, member.column, member.split));
        const uint32_t told_window =
            hopper::in_block(window_empty, member.rank_of(member.row, tells_window ? lane : 0, member.split));
        const auto release_weight = [&](uint32_t stage) {
            if (tells_weight) hopper::barrier_arrive_in_cluster(told_weight + 8 * stage);
        };

        Ring window_ring, weight_ring;
        Rows<T, Shape::kSums> rows;
        uint32_t pixels[kSteps][4] = {};
        int turn = 0;
        for (int group = member.cluster; group < arguments.row_groups * arguments.column_groups;
            group += member.clusters) {
            const Place place = place_of<Shape>(member, group);
            rows.begin(arguments, member.split == 0, place.row + warp_row + lane / 4, place.column + lane % 4 * 2);
            if (arguments.has_residual && member.split == 0) {
#pragma unroll
                for (int box = 0; box < Shape::kResidualBoxes; ++box) {
                    weight_ring.wait(weight_full);
                    rows.add_residual(box * kDepth, weight(weight_ring.stage), warp_row + lane / 4, lane);
                    __syncwarp();
                    release_weight(weight_ring.stage);
                    weight_ring.advance(arguments.weight_stages);
                }
            }
            // The pixel of the window, from its top left, that the first tap takes for this lane's row.
            const int pixel = min(place.row + warp_row + lane % 16, arguments.pixels - 1);
            const int first = (padded_row_of(pixel) - padded_row_of(place.row)) * (arguments.out_width + 2) +
                              pixel % arguments.image_pixels % arguments.out_width;
            int before = -1;  // the buffer of the weight of the step before
            uint32_t row = 0, exchanged = 0;
            uint64_t right = 0;
            const auto begin_tap = [&](int tap) {
                weight_ring.wait(weight_full);
                right = hopper::operand(weight(weight_ring.stage));
                const int at = first + tap / kTaps * (arguments.out_width + 2) + tap % kTaps;
                row = window(window_ring.stage) + at * hopper::kSwizzleBytes;
                exchanged = row / hopper::kSwizzleBytes % 8;
            };
            const auto add_step = [&](int k) {
                hopper::wgmma_wait<kSteps - 1>();  // the products that had these registers are done
                hopper::keep(pixels[k], arguments.pixels < 0, stores);
                hopper::load_matrices(pixels[k], row + ((2 * k + lane / 16) ^ exchanged) * 16);
                hopper::wgmma_fence();
                add_products<T>(rows.sum, pixels[k], right + 2 * k);
                hopper::wgmma_commit();
            };
            const auto begin_window = [&] {
                window_ring.wait(window_full);
                begin_tap(0);
                add_step(0);
            };
            // A window's first products stand before the loop and at its end: in it, the compiler would let products
            // begin only when those before have ended.
            begin_window();
            for (int block = place.taps.begin + 1;; ++block) {
#pragma unroll
                for (int tap = 0; tap < kTaps * kTaps; ++tap) {
                    if (tap > 0) begin_tap(tap);
#pragma unroll
                    for (int k = tap > 0 ? 0 : 1; k < kSteps; ++k) add_step(k);
                    // its last products were done when this step's last were begun
                    if (before >= 0) release_weight(before);
                    before = int(weight_ring.stage);
                    weight_ring.advance(arguments.weight_stages);
                }
                __syncwarp();
                // all is in registers
                if (tells_window) hopper::barrier_arrive_in_cluster(told_window + 8 * window_ring.stage);
                window_ring.advance(kWindows);
                if (block >= place.taps.end) break;
                begin_window();
            }
            hopper::wgmma_wait<0>();
            release_weight(before);
            if (place.shortcut.count() > 0) {
                uint32_t stages[2];  // of the step before: its pixels and its weight
                const auto add_shortcut_step = [&] {
                    weight_ring.wait(weight_full);
                    stages[0] = weight_ring.stage;
                    weight_ring.advance(arguments.weight_stages);
                    weight_ring.wait(weight_full);
                    stages[1] = weight_ring.stage;
                    weight_ring.advance(arguments.weight_stages);
                    const uint64_t pixels_left =
                        hopper::operand(weight(stages[0]) + warp / 4 * (Shape::kPixelBytes / kComputing));
                    const uint64_t weight_right = hopper::operand(weight(stages[1]));
                    hopper::wgmma_fence();
#pragma unroll
                    for (int k = 0; k < kSteps; ++k)
                        add_products<T>(rows.sum, pixels_left + 2 * k, weight_right + 2 * k);
                    hopper::wgmma_commit();
                };
                const auto release_step = [&](const uint32_t (&done)[2]) {
                    release_weight(done[0]);
                    release_weight(done[1]);
                };
                add_shortcut_step();
                for (int left = place.shortcut.count() - 1; left > 0; --left) {
                    const uint32_t done[2] = {stages[0], stages[1]};
                    add_shortcut_step();
                    hopper::wgmma_wait<1>();
                    release_step(done);
                }
                hopper::wgmma_wait<0>();
                release_step(stages);
            }
            if (arguments.splits > 1 && !rows.join(member, weights, warp, lane)) continue;
            if (place.row + warp_row >= arguments.pixels) continue;
            rows.activate(arguments.act);
            rows.write(
                arguments, stores + warp * kStores * kStoreBytes, turn, place.row + warp_row, place.column, lane);
        }
    }
};

#endif  // SFAST_HOPPER

template <typename T>
__global__ void __launch_bounds__(kBlockThreads, 1)
    conv2d_window_kernel(const __grid_constant__ Conv2dArguments arguments) {
#ifdef SFAST_HOPPER
    extern __shared__ uint8_t shared[];
    // static, which is how sfast_conv2d_status knows this code from the empty one
    __shared__ uint64_t barriers[Window::kBarriers];
    const Window window(arguments, shared, barriers);
    if (threadIdx.x == 0) window.init_barriers();
    part_warpgroups(arguments, [&] { window.load(); }, [&](int warp) { window.compute<T>(warp); });
#endif
}

}  // namespace
}  // namespace sfast
#endif
