// A convolution with what follows it: the launch. How the kernels work is in conv2d_tile.cuh.
#include <algorithm>

#include "conv2d_gather.cuh"
#include "conv2d_window.cuh"
#include "phase_weights.cuh"

#if CUDART_VERSION >= 12000

namespace sfast {
namespace {

using ConvKernel = void (*)(Conv2dArguments);

// The kernel for tiles of these sizes, null where there is none.
ConvKernel kernel_of(int32_t dtype, int32_t rows, int32_t columns, bool window) {
    const bool half = dtype == SFAST_FLOAT16;
    const auto of = [&](ConvKernel for_half, ConvKernel for_bfloat16) { return half ? for_half : for_bfloat16; };
    if (window)
        return rows == 128 && columns == 160 ? of(conv2d_window_kernel<__half>, conv2d_window_kernel<__nv_bfloat16>)
                                             : nullptr;
    using Low = Tile<128, 160>;
    using High = Tile<256, 160>;
    using Narrow = Tile<256, 128>;
    if (rows == 128 && columns == 160)
        return of(conv2d_gather_kernel<__half, Low>, conv2d_gather_kernel<__nv_bfloat16, Low>);
    if (rows == 256 && columns == 160)
        return of(conv2d_gather_kernel<__half, High>, conv2d_gather_kernel<__nv_bfloat16, High>);
    if (rows == 256 && columns == 128)
        return of(conv2d_gather_kernel<__half, Narrow>, conv2d_gather_kernel<__nv_bfloat16, Narrow>);
    return nullptr;
}

// A launch of clusters of `blocks`; the attribute must outlive it.
cudaLaunchConfig_t configure(int blocks, int clusters, cudaLaunchAttribute* attribute) {
    attribute->id = cudaLaunchAttributeClusterDimension;
    attribute->val.clusterDim = {unsigned(blocks), 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(unsigned(clusters) * blocks);
    config.blockDim = dim3(kBlockThreads);
    config.dynamicSmemBytes = kSharedBytes;
    config.attrs = attribute;
    config.numAttrs = 1;
    return config;
}

// How many clusters of `blocks` the current device runs at the same time.
cudaError_t count_clusters(ConvKernel kernel, int blocks, int* count) {
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
    if (error != cudaSuccess) return told(error);
    cudaLaunchAttribute attribute{};
    const cudaLaunchConfig_t config = configure(blocks, 1, &attribute);
    return told(cudaOccupancyMaxActiveClusters(count, kernel, &config));
}

int64_t parts_of(int64_t size, int64_t part) { return (size + part - 1) / part; }

// The bytes of a window of these images, 0 where it doesn't fit.
int64_t fitting_window(int64_t n, int64_t height, int64_t width) {
    if (width + 2 > kMostPaddedWidth || n > INT32_MAX / (height + 2)) return 0;
    const int64_t bytes = window_bytes_of(int(n * height * width), int(height), int(width));
    return weight_stages_of(bytes) >= kFewestWeightStages ? bytes : 0;
}

// Shares the tiles out and launches. What is left of `arguments` to fill in is how they are cut.
cudaError_t start(ConvKernel kernel, Conv2dArguments& arguments, int rows, int columns, int sharing_rows,
    int sharing_columns, int splits, void* stream) {
    arguments.sharing_rows = sharing_rows;
    arguments.sharing_columns = sharing_columns;
    arguments.splits = splits;
    const int64_t phase_groups = parts_of(parts_of(arguments.pixels, rows), sharing_rows);
    const int64_t column_groups = parts_of(parts_of(arguments.channels, columns), sharing_columns);
    if (phase_groups * arguments.phases > INT32_MAX / 8 / column_groups) return cudaErrorInvalidValue;
    arguments.phase_groups = int(phase_groups);
    arguments.row_groups = int(phase_groups * arguments.phases);
    arguments.column_groups = int(column_groups);

    const int blocks = sharing_rows * sharing_columns * splits;
    int fitting = 0;
    const cudaError_t error = count_clusters(kernel, blocks, &fitting);
    if (error != cudaSuccess) return error;
    const int groups = arguments.row_groups * arguments.column_groups;
    // Blocks that share the depth have one tile: they join its sums where they load.
    const int clusters = splits > 1 ? groups : std::min(groups, std::max(fitting, 1));
    cudaLaunchAttribute attribute{};
    cudaLaunchConfig_t config = configure(blocks, clusters, &attribute);
    config.stream = static_cast<cudaStream_t>(stream);
    return told(cudaLaunchKernelEx(&config, kernel, arguments));
}

}  // namespace
}  // namespace sfast

// cudaSuccess where sfast_conv2d can run on the current device: as sfast_attention_status.
SFAST_API int32_t sfast_conv2d_status() {
    using namespace sfast;
    const cudaError_t error = has_code(conv2d_window_kernel<__half>);
    if (error != cudaSuccess) return error;
    PixelMapEncoder encoder;
    return pixel_map_encoder(&encoder);
}

// How many clusters of `blocks` blocks the current device runs at the same time, for a result of n images of height x
// width and a cut as below; 0 where it runs none.
SFAST_API int32_t sfast_conv2d_clusters(
    int64_t n, int64_t height, int64_t width, int32_t rows, int32_t columns, int32_t window, int32_t blocks) {
    using namespace sfast;
    const ConvKernel kernel = kernel_of(SFAST_FLOAT16, rows, columns, window != 0);
    if (kernel == nullptr || blocks < 1 || blocks > 8 || n <= 0 || height <= 0 || width <= 0 ||
        n > (INT32_MAX - 1024) / height / width)
        return 0;
    if (window && fitting_window(n, height, width) == 0) return 0;
    int count = 0;
    return count_clusters(kernel, blocks, &count) == cudaSuccess ? count : 0;
}

// out = act(conv2d(x, weight) + bias + channel_add + residual + [shortcut, tail] @ shortcut_weight^T), in float32 until
// it is rounded once; bits don't differ from run to run.
//   x            [n, height, width, c] dense, c a multiple of 64; aligned to 16 bytes
//   weight       [channels, tap_rows, tap_columns, c] dense, channels a multiple of 8, 16 taps at most in a row or
//                column; 16 bytes
//   bias         [channels] or null, aligned to 4 bytes
//   channel_add  [n, channels], rows `channel_add_stride` elements apart (even; 0: one row for all images), or null; 4
//                bytes
//   residual     as out, or null; 16 bytes
//   shortcut     [n, out_height, out_width, shortcut_c] dense, shortcut_c a multiple of 64, or null, 0; 16 bytes
//   tail         likewise with tail_c channels, which stand behind the shortcut's; only with a shortcut
//   shortcut_weight  [channels, shortcut_c + tail_c] dense, only with a shortcut; 16 bytes
//   out          [n, out_height, out_width, channels] dense, aligned to 16 bytes
// All of `dtype`, SFAST_FLOAT16 or SFAST_BFLOAT16; strides are 1 to 8, paddings 0 to 16; act is none, SiLU or ReLU. How the work is cut:
//   rows, columns    pixels and channels of a tile: 128 x 160, 256 x 160 or 256 x 128
//   window           1: a tile's pixels are brought once for all taps. For 128 x 160, 3 x 3 taps, stride 1, padding 1,
//                    where sfast_conv2d_clusters isn't 0. 0: once for each tap
//   sharing_rows     1 or 2 blocks of a cluster that have the same channels, next to each other in pixels
//   sharing_columns  1 or 2 that have the same pixels, next to each other in channels
//   splits           blocks that share a tile's depth, only with 128 rows; tap_rows * tap_columns * c / 64 at most,
//                    with a window c / 64; the product of the three is 8 at most
SFAST_API int32_t sfast_conv2d(const void* x, const void* weight, const void* bias, const void* channel_add,
    int64_t channel_add_stride, const void* residual, const void* shortcut, int64_t shortcut_c, const void* tail,
    int64_t tail_c, const void* shortcut_weight, void* out, int64_t n, int64_t height, int64_t width, int64_t c,
    int64_t channels, int64_t tap_rows, int64_t tap_columns, int64_t stride_h, int64_t stride_w, int64_t pad_h,
    int64_t pad_w, int32_t act, int32_t dtype, int32_t rows, int32_t columns, int32_t window, int32_t sharing_rows,
    int32_t sharing_columns, int32_t splits, void* stream) {
    using namespace sfast;
    const ConvKernel kernel = kernel_of(dtype, rows, columns, window != 0);
    if (kernel == nullptr || (dtype != SFAST_FLOAT16 && dtype != SFAST_BFLOAT16)) return cudaErrorInvalidValue;
    if (act < SFAST_ACT_NONE || act > SFAST_ACT_RELU) return cudaErrorInvalidValue;
    if (n <= 0 || height <= 0 || width <= 0 || c <= 0 || c % kDepth != 0 || channels <= 0 || channels % 8 != 0)
        return cudaErrorInvalidValue;
    if (tap_rows <= 0 || tap_columns <= 0 || tap_rows > 16 || tap_columns > 16) return cudaErrorInvalidValue;
    if (stride_h <= 0 || stride_w <= 0 || stride_h > 8 || stride_w > 8) return cudaErrorInvalidValue;
    if (pad_h < 0 || pad_w < 0 || pad_h > 16 || pad_w > 16) return cudaErrorInvalidValue;
    if (height + 2 * pad_h < tap_rows || width + 2 * pad_w < tap_columns) return cudaErrorInvalidValue;
    const int64_t out_height = (height + 2 * pad_h - tap_rows) / stride_h + 1,
                  out_width = (width + 2 * pad_w - tap_columns) / stride_w + 1;
    if (out_height > INT32_MAX / out_width || n > (INT32_MAX - 1024) / (out_height * out_width))
        return cudaErrorInvalidValue;
    const int64_t pixels = n * out_height * out_width, steps = tap_rows * tap_columns * (c / kDepth);
    if (steps > INT32_MAX / kDepth || channels > INT32_MAX / 2) return cudaErrorInvalidValue;
    const bool same_size =
        tap_rows == kTaps && tap_columns == kTaps && stride_h == 1 && stride_w == 1 && pad_h == 1 && pad_w == 1;
    const int64_t window_bytes = window && same_size ? fitting_window(n, height, width) : 0;
    if (window && window_bytes == 0) return cudaErrorInvalidValue;
    const int64_t parts = window ? c / kDepth : steps;
    if (sharing_rows < 1 || sharing_rows > 2 || sharing_columns < 1 || sharing_columns > 2 || splits < 1)
        return cudaErrorInvalidValue;
    if (sharing_rows * sharing_columns * int64_t(splits) > 8 || splits > parts) return cudaErrorInvalidValue;
    if (splits > 1 && rows > 128) return cudaErrorInvalidValue;  // the sums of more rows have no room to be joined in
    for (const void* pointer : {bias, channel_add}) {
        if (reinterpret_cast<uintptr_t>(pointer) % sizeof(uint32_t) != 0) return cudaErrorMisalignedAddress;
    }
    if (channel_add_stride % 2 != 0) return cudaErrorMisalignedAddress;
    if (shortcut_c < 0 || shortcut_c % kDepth != 0 || tail_c < 0 || tail_c % kDepth != 0) return cudaErrorInvalidValue;
    if (shortcut_c > INT32_MAX / 2 - tail_c || (tail_c > 0 && shortcut_c == 0)) return cudaErrorInvalidValue;
    if (shortcut_c > 0 && (shortcut == nullptr || shortcut_weight == nullptr)) return cudaErrorInvalidValue;
    if (tail_c > 0 && tail == nullptr) return cudaErrorInvalidValue;

    TensorMapEncoder encoder;
    cudaError_t error = tensor_map_encoder(&encoder);
    if (error != cudaSuccess) return error;
    PixelMapEncoder pixel_encoder;
    error = pixel_map_encoder(&pixel_encoder);
    if (error != cudaSuccess) return error;
    Conv2dArguments arguments{};
    if (window) {
        error = encode_map<4>(encoder, &arguments.x, dtype, x, {c, width, height, n},
            {c, c * width, c * width * height}, {kDepth, int(width) + 2, 1, 1});
        arguments.window_bytes = int(window_bytes);
        arguments.weight_stages = weight_stages_of(window_bytes);
    } else {
        error = encode_pixels(pixel_encoder, &arguments.x, dtype, x, n, height, width, c, {tap_rows, stride_h, pad_h},
            {tap_columns, stride_w, pad_w}, rows / sharing_columns);
    }
    if (error != cudaSuccess) return error;
    const int64_t depth = steps * kDepth;
    error = encode_map<2>(
        encoder, &arguments.weight, dtype, weight, {depth, channels}, {depth}, {kDepth, columns / sharing_rows});
    if (error != cudaSuccess) return error;
    if (residual != nullptr) {
        error = encode_map<2>(
            encoder, &arguments.residual, dtype, residual, {channels, pixels}, {channels}, {kDepth, kResidualRows});
        if (error != cudaSuccess) return error;
    }
    const int rows_brought = window ? rows : rows / sharing_columns;
    if (shortcut_c > 0) {
        error = encode_map<2>(
            encoder, &arguments.shortcut, dtype, shortcut, {shortcut_c, pixels}, {shortcut_c}, {kDepth, rows_brought});
        if (error != cudaSuccess) return error;
        const int64_t joined = shortcut_c + tail_c;
        error = encode_map<2>(encoder, &arguments.shortcut_weight, dtype, shortcut_weight, {joined, channels}, {joined},
            {kDepth, columns / sharing_rows});
        if (error != cudaSuccess) return error;
    }
    if (tail_c > 0) {
        error =
            encode_map<2>(encoder, &arguments.tail, dtype, tail, {tail_c, pixels}, {tail_c}, {kDepth, rows_brought});
        if (error != cudaSuccess) return error;
    }
    error = encode_map<2>(encoder, &arguments.out, dtype, out, {channels, pixels}, {channels},
        {kStoreColumns, kWarpRows}, CU_TENSOR_MAP_SWIZZLE_64B);
    if (error != cudaSuccess) return error;
    arguments.bias = bias;
    arguments.channel_add = channel_add;
    arguments.channel_add_stride = channel_add_stride;
    arguments.has_residual = residual != nullptr;
    arguments.pixels = int(pixels);
    arguments.image_pixels = int(out_height * out_width);
    arguments.out_height = int(out_height);
    arguments.out_width = int(out_width);
    arguments.channels = int(channels);
    arguments.stride_h = int(stride_h);
    arguments.stride_w = int(stride_w);
    arguments.pad_h = int(pad_h);
    arguments.pad_w = int(pad_w);
    arguments.tap_columns = int(tap_columns);
    arguments.depth_blocks = int(c / kDepth);
    arguments.parts = int(parts);
    arguments.shortcut_blocks = int(shortcut_c / kDepth);
    arguments.tail_blocks = int(tail_c / kDepth);
    arguments.phases = 1;
    arguments.act = act;
    return start(kernel, arguments, rows, columns, sharing_rows, sharing_columns, splits, stream);
}

// out = conv2d(y, weight) + bias for 3 x 3 taps and a padding of 1, where y is x doubled in height and width by
// repeating its pixels; in float32 until it is rounded once, but for sums of taps, which are rounded; bits don't differ
// from run to run. Asks for what sfast_conv2d does.
//   x              [n, height, width, c] dense, c a multiple of 64; aligned to 16 bytes
//   weight         [channels, 3, 3, c] dense, channels a multiple of 8; 16 bytes
//   bias           [channels] or null, aligned to 4 bytes
//   phase_weights  room for [4, channels, 2, 2, c], written; 16 bytes
//   out            [n, 2 * height, 2 * width, channels] dense; 16 bytes
// All of `dtype`, SFAST_FLOAT16 or SFAST_BFLOAT16. rows to sharing_columns as for sfast_conv2d without a window, tiles
// being cut of x. Where CUDA refuses the second of its two kernels, the first is queued.
SFAST_API int32_t sfast_upsample_conv2d(const void* x, const void* weight, const void* bias, void* phase_weights,
    void* out, int64_t n, int64_t height, int64_t width, int64_t c, int64_t channels, int32_t dtype, int32_t rows,
    int32_t columns, int32_t sharing_rows, int32_t sharing_columns, void* stream) {
    using namespace sfast;
    constexpr int64_t kPhases = 4, kPhaseTaps = 2;
    const ConvKernel kernel = kernel_of(dtype, rows, columns, false);
    if (kernel == nullptr || (dtype != SFAST_FLOAT16 && dtype != SFAST_BFLOAT16)) return cudaErrorInvalidValue;
    if (n <= 0 || height <= 0 || width <= 0 || c <= 0 || c % kDepth != 0 || channels <= 0 || channels % 8 != 0)
        return cudaErrorInvalidValue;
    if (height > INT32_MAX / width || n > (INT32_MAX - 1024) / (height * width)) return cudaErrorInvalidValue;
    if (c > INT32_MAX / (kPhaseTaps * kPhaseTaps) || channels > INT32_MAX / (2 * kPhases)) return cudaErrorInvalidValue;
    if (sharing_rows < 1 || sharing_rows > 2 || sharing_columns < 1 || sharing_columns > 2)
        return cudaErrorInvalidValue;
    if (reinterpret_cast<uintptr_t>(bias) % sizeof(uint32_t) != 0) return cudaErrorMisalignedAddress;
    if (!is_aligned(weight) || !is_aligned(out)) return cudaErrorMisalignedAddress;

    TensorMapEncoder encoder;
    cudaError_t error = tensor_map_encoder(&encoder);
    if (error != cudaSuccess) return error;
    PixelMapEncoder pixel_encoder;
    error = pixel_map_encoder(&pixel_encoder);
    if (error != cudaSuccess) return error;
    Conv2dArguments arguments{};
    // As for 3 x 3 taps with a padding of 1, of which each phase takes four.
    error = encode_pixels(pixel_encoder, &arguments.x, dtype, x, n, height, width, c, {kTaps, 1, 1}, {kTaps, 1, 1},
        rows / sharing_columns);
    if (error != cudaSuccess) return error;
    const int64_t depth = kPhaseTaps * kPhaseTaps * c;
    error = encode_map<2>(encoder, &arguments.weight, dtype, phase_weights, {depth, kPhases * channels}, {depth},
        {kDepth, columns / sharing_rows});
    if (error != cudaSuccess) return error;
    error = sum_phases(weight, phase_weights, channels, c, dtype, static_cast<cudaStream_t>(stream));
    if (error != cudaSuccess) return error;
    arguments.bias = bias;
    arguments.pixels = int(n * height * width);
    arguments.image_pixels = int(height * width);
    arguments.out_height = int(height);
    arguments.out_width = int(width);
    arguments.channels = int(channels);
    arguments.stride_h = arguments.stride_w = 1;
    arguments.pad_h = arguments.pad_w = 1;
    arguments.tap_columns = int(kPhaseTaps);
    arguments.depth_blocks = int(c / kDepth);
    arguments.parts = int(depth / kDepth);
    arguments.phases = int(kPhases);
    arguments.doubled = out;
    arguments.act = SFAST_ACT_NONE;
    return start(kernel, arguments, rows, columns, sharing_rows, sharing_columns, 1, stream);
}

#endif  // CUDA 11 has neither tensor maps nor wgmma, so that these functions are missing
