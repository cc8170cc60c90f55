// The C interface of the CUDA extension: raw pointers, sizes and a stream, no header of PyTorch's and no C++ type.
// One build therefore serves every PyTorch and every Python on the machine. sfast_core/native/interface.py reads
// it from here: a declaration is `SFAST_API type name(parameters);`, of pointers, int32_t, int64_t and float.
#pragma once

#include <stdint.h>

#ifdef _WIN32
#define SFAST_API extern "C" __declspec(dllexport)
#else
#define SFAST_API extern "C" __attribute__((visibility("default")))
#endif

// Counted up when a signature or the meaning of an argument below changes.
#define SFAST_ABI_VERSION 11

// Element types.
enum : int32_t { SFAST_FLOAT32 = 0, SFAST_FLOAT16 = 1, SFAST_BFLOAT16 = 2, SFAST_INT64 = 3 };

// Flags of sfast_group_norm_act. Without one of the last two the shape decides between one kernel and two.
enum : int32_t { SFAST_SILU = 1, SFAST_ONE_KERNEL = 2, SFAST_TWO_KERNELS = 4 };

// Activations of sfast_conv2d.
enum : int32_t { SFAST_ACT_NONE = 0, SFAST_ACT_SILU = 1, SFAST_ACT_RELU = 2 };

// Those of sfast_scaled_linear besides SFAST_ACT_NONE and SFAST_ACT_SILU, and what its operands are.
enum : int32_t { SFAST_ACT_GELU = 3, SFAST_ACT_GELU_TANH = 4 };
enum : int32_t { SFAST_INT8 = 0, SFAST_E4M3 = 1 };

SFAST_API int32_t sfast_abi_version(void);

// The name of a cudaError_t.
SFAST_API const char* sfast_error_name(int32_t error);

// cudaSuccess where this build has code for the current device and the driver is new enough for it. Runs nothing.
SFAST_API int32_t sfast_device_status(void);

// Puts a kernel in the place of each small memset node of `graph` (a cudaGraph_t that isn't instantiated), which writes
// the same in less time. Those that zero parts of the memory of counters, each another part, are taken out: one kernel
// before all other nodes zeroes that memory. Counts in `replaced` the memsets that are gone.
//   counters  `counters_bytes` bytes on the device, multiples of 16 both; or null, 0. Must be no memory that the
//             graph's nodes use otherwise: whatever uses a counter is behind its memset, and what is there before and
//             behind a replay matters to nobody
// Leaves a graph alone that allocates memory. On an error the graph computes what it did: a memset may be done twice.
// Works on the current device, which must be the graph's.
SFAST_API int32_t sfast_graph_replace_memsets(void* graph, void* counters, int64_t counters_bytes, int32_t* replaced);

// Bytes of workspace that sfast_group_norm_act wants on the current device for n samples and this many groups.
SFAST_API int64_t sfast_group_norm_act_workspace_bytes(int64_t n, int64_t groups);

// y = act((v - mean(v)) / sqrt(var(v) + eps) * weight + bias), v = x + channel_add; mean and var over each group of c /
// groups channels and all hw positions of a sample; act is SiLU or nothing.
//   x, y         [n, hw, c] dense, of `dtype`; y must not overlap what is read
//   tail         [n, hw, tail_c] dense, of `dtype`: the last tail_c of the c channels, behind those of x [n, hw, c -
//                tail_c]; or null, 0
//   weight, bias [c] or null, of their own dtypes
//   channel_add  [n, c] of `channel_add_dtype`, rows `channel_add_stride` elements apart (0: one row for all samples),
//                or null
//   workspace    on the device, aligned to 8 bytes; holds nothing before or after
// Works on the current device, queues on `stream` (a cudaStream_t) and doesn't wait. Returns a cudaError_t;
// cudaErrorInvalidValue before anything is queued when the sizes don't fit together.
SFAST_API int32_t sfast_group_norm_act(
    const void* x, const void* tail, int64_t tail_c, void* y,
    const void* weight, int32_t weight_dtype,
    const void* bias, int32_t bias_dtype,
    const void* channel_add, int32_t channel_add_dtype, int64_t channel_add_stride,
    int64_t n, int64_t hw, int64_t c, int64_t groups,
    float eps, int32_t dtype, int32_t flags,
    void* workspace, int64_t workspace_bytes, void* stream);

// cudaSuccess where sfast_group_norm_cluster can run on the current device. Runs nothing.
SFAST_API int32_t sfast_cluster_status(void);

// The same in one kernel that reads its input once, on devices of compute capability 9.0 and up.
//   cluster_groups  divides groups; that many are a cluster's share of a sample, 16 at most
//   cluster_blocks  blocks to a cluster, 8 at most: each holds its part of the rows in shared memory
// A group must have at least as many channels as there are elements in 16 bytes, those of cluster_groups and tail_c
// must be multiples of that number, and x, tail and y must be aligned to 16 bytes. Otherwise, and where shared memory
// doesn't suffice, it returns an error and nothing is queued.
SFAST_API int32_t sfast_group_norm_cluster(
    const void* x, const void* tail, int64_t tail_c, void* y,
    const void* weight, int32_t weight_dtype,
    const void* bias, int32_t bias_dtype,
    const void* channel_add, int32_t channel_add_dtype, int64_t channel_add_stride,
    int64_t n, int64_t hw, int64_t c, int64_t groups,
    float eps, int32_t dtype, int32_t flags,
    int32_t cluster_groups, int32_t cluster_blocks, void* stream);

// s = x + x_bias + residual, rounded to `dtype`; out = (s - mean(s)) / sqrt(var(s) + eps) * weight + bias, mean and var
// those of a row's channels; sum = x + x_bias + residual + sum_bias.
//   x, out               [rows, channels] dense
//   residual, sum        the same, or both null: then x is what is normalised
//   x_bias, sum_bias     [channels] or null, only with a residual
//   weight, bias         [channels] or null
// All of `dtype` and aligned to 16 bytes; what is written must not overlap what is read. A row is 1 to 5 times a power
// of two, 512 at most, of 16 bytes. Otherwise it returns an error and nothing is queued.
SFAST_API int32_t sfast_add_layer_norm(
    const void* x, const void* residual, const void* x_bias, const void* sum_bias, const void* weight, const void* bias,
    void* sum, void* out,
    int64_t rows, int64_t channels, float eps, int32_t dtype, void* stream);

// cudaSuccess where sfast_attention can run on the current device: compute capability 9.0, and a build for 9.0a by CUDA
// 12 or newer. Runs nothing.
SFAST_API int32_t sfast_attention_status(void);

// out = softmax(scale * q @ k^T) @ v, the softmax over the keys, in float32 but for its rounded weights; bits don't
// differ from run to run.
//   q, k, v  [images, heads, queries or keys, head]; the head's elements are dense, *_strides are the three distances
//            in elements from one row, one head and one image to the next, multiples of 8; aligned to 16 bytes
//   out      [images, queries, heads, head] dense, aligned to 4 bytes; must not overlap what is read
// All of `dtype`, SFAST_FLOAT16 or SFAST_BFLOAT16. head is 40 or 64; images * heads at most 65535.
//   cut        first_heads, first_tall, first_low, rest_tall, rest_low, paired:
//     tall, low  tiles of a head, of 256 and 192 queries where head is 40, of 192 and 128 where it is 64; together at
//                least its queries. `first` ones of the first `first_heads` heads of all images (1 or more), `rest`
//                ones of the others
//     paired     the last so many tall tiles are computed by two blocks each; only without low ones, and with more than
//                128 keys
//   half_cut   null; or for the first half of the images alone, of which there are an even number: where q, k and v of
//              the second half are the same bit for bit, the first half's result is computed and written twice
//   differ     with half_cut: 4 bytes on the device, aligned to as many, that become 0 where they are the same and 1
//              otherwise
// Otherwise it returns an error and nothing is written to out.
SFAST_API int32_t sfast_attention(
    const void* q, const int64_t* q_strides,
    const void* k, const int64_t* k_strides,
    const void* v, const int64_t* v_strides,
    void* out,
    int64_t images, int64_t heads, int64_t queries, int64_t keys, int64_t head,
    float scale, int32_t dtype,
    const int32_t* cut, const int32_t* half_cut, void* differ, void* stream);

// cudaSuccess where sfast_conv2d can run on the current device: as sfast_attention_status.
SFAST_API int32_t sfast_conv2d_status(void);

// How many clusters of `blocks` blocks the current device runs at the same time, for a result of n images of height x
// width and a cut as below; 0 where it runs none.
SFAST_API int32_t sfast_conv2d_clusters(
    int64_t n, int64_t height, int64_t width, int32_t rows, int32_t columns, int32_t window, int32_t blocks);

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
//   out          [n, out_height, out_width, channels] dense, aligned to 16 bytes; must not overlap what is read
// All of `dtype`, SFAST_FLOAT16 or SFAST_BFLOAT16; strides are 1 to 8, paddings 0 to 16. How the work is cut:
//   rows, columns    pixels and channels of a tile: 128 x 160, 256 x 160 or 256 x 128
//   window           1: a tile's pixels are brought once for all taps. For 128 x 160, 3 x 3 taps, stride 1, padding 1,
//                    where sfast_conv2d_clusters isn't 0. 0: once for each tap
//   sharing_rows     1 or 2 blocks of a cluster that have the same channels, next to each other in pixels
//   sharing_columns  1 or 2 that have the same pixels, next to each other in channels
//   splits           blocks that share a tile's depth, only with 128 rows; tap_rows * tap_columns * c / 64 at most,
//                    with a window c / 64; the product of the three is 8 at most
// Otherwise it returns an error and nothing is queued.
SFAST_API int32_t sfast_conv2d(
    const void* x, const void* weight, const void* bias,
    const void* channel_add, int64_t channel_add_stride,
    const void* residual,
    const void* shortcut, int64_t shortcut_c, const void* tail, int64_t tail_c, const void* shortcut_weight,
    void* out,
    int64_t n, int64_t height, int64_t width, int64_t c,
    int64_t channels, int64_t tap_rows, int64_t tap_columns,
    int64_t stride_h, int64_t stride_w, int64_t pad_h, int64_t pad_w,
    int32_t act, int32_t dtype,
    int32_t rows, int32_t columns, int32_t window, int32_t sharing_rows, int32_t sharing_columns, int32_t splits,
    void* stream);

// out = conv2d(y, weight) + bias for 3 x 3 taps and a padding of 1, where y is x doubled in height and width by
// repeating its pixels; in float32 until it is rounded once, but for sums of taps, which are rounded; bits don't differ
// from run to run. Asks for what sfast_conv2d does.
//   x              [n, height, width, c] dense, c a multiple of 64; aligned to 16 bytes
//   weight         [channels, 3, 3, c] dense, channels a multiple of 8; 16 bytes
//   bias           [channels] or null, aligned to 4 bytes
//   phase_weights  room for [4, channels, 2, 2, c], written; 16 bytes
//   out            [n, 2 * height, 2 * width, channels] dense; 16 bytes. What is written must not overlap what is read
// All of `dtype`, SFAST_FLOAT16 or SFAST_BFLOAT16. rows to sharing_columns as for sfast_conv2d without a window, tiles
// being cut of x. Otherwise it returns an error and nothing is queued, unless CUDA refuses the second of its two
// kernels.
SFAST_API int32_t sfast_upsample_conv2d(
    const void* x, const void* weight, const void* bias, void* phase_weights, void* out,
    int64_t n, int64_t height, int64_t width, int64_t c, int64_t channels, int32_t dtype,
    int32_t rows, int32_t columns, int32_t sharing_rows, int32_t sharing_columns, void* stream);

// cudaSuccess where sfast_conv2d_few can run on the current device: compute capability 8.0 and newer, and a build for
// one of these. Runs nothing.
SFAST_API int32_t sfast_conv2d_few_status(void);

// out = conv2d(x, weight) + bias, 3 x 3, stride 1, padding 1, in float32 until it is rounded once; bits don't differ
// from run to run.
//   x        [n, height, width, c] dense, c a multiple of 64; aligned to 16 bytes
//   weight   [channels, 3, 3, c] dense, channels 8 at most; aligned to 16 bytes
//   bias     [channels] or null
//   out      [n, height, width, channels] dense; must not overlap what is read
// All of `dtype`, SFAST_FLOAT16 or SFAST_BFLOAT16. Otherwise it returns an error and nothing is queued.
SFAST_API int32_t sfast_conv2d_few(
    const void* x, const void* weight, const void* bias, void* out,
    int64_t n, int64_t height, int64_t width, int64_t c, int64_t channels,
    int32_t dtype, void* stream);

// out = act(x @ weight^T + bias + residual), in float32 until it is rounded once; bits don't differ from run to run.
//   x         [rows, depth] dense, 8 rows at most, depth a multiple of 8, 2^24 at most; aligned to 16 bytes
//   weight    [columns, depth] dense; 16 bytes
//   bias      [columns] or null
//   residual  as out, or null
//   out       [rows, columns] dense; must not overlap what is read
// All of `dtype`, SFAST_FLOAT16 or SFAST_BFLOAT16. Otherwise it returns an error and nothing is queued.
SFAST_API int32_t sfast_linear_few(
    const void* x, const void* weight, const void* bias, const void* residual, void* out,
    int64_t rows, int64_t columns, int64_t depth,
    int32_t act, int32_t dtype, void* stream);

// cudaSuccess where sfast_scaled_linear can run on the current device: compute capability 9.0, and a build for it. Runs
// nothing.
SFAST_API int32_t sfast_scaled_linear_status(void);

// out = act(x @ weight^T * row_scales * column_scales + bias), in float32 from the sums on until it is rounded once;
// with a gate out = (x @ weight^T * row_scales * column_scales + bias) * act(x @ gate_weight^T * row_scales *
// gate_scales + gate_bias). Sums of int8 are exact, those of e4m3 are the tensor core's; bits don't differ from run to
// run.
//   x              [rows, depth] dense, of `kind`; depth a multiple of 16; aligned to 16 bytes
//   weight         [columns, depth] likewise; columns a multiple of 8
//   gate_weight    likewise, or null
//   row_scales     float32 [rows], or one where row_scale_step is 0 and not 1
//   column_scales  float32 [columns], or one where column_scale_step is 0; gate_scales likewise, null without a gate
//   bias           [columns] of bias_dtype, or null; gate_bias likewise
//   out            [rows, columns] dense, aligned to 16 bytes; must not overlap what is read
// out of `dtype`, SFAST_FLOAT16 or SFAST_BFLOAT16. How it is cut: tiles of 128 rows and tile_columns (128, 192 or 256;
// with a gate 256, 128 of each weight), `sharing` blocks (1, 2, 4) that share columns, `band` groups of so many rows at
// a time. Otherwise it returns an error and nothing is queued.
SFAST_API int32_t sfast_scaled_linear(
    const void* x, const void* weight, const void* gate_weight,
    const void* row_scales, int32_t row_scale_step,
    const void* column_scales, const void* gate_scales, int32_t column_scale_step,
    const void* bias, const void* gate_bias, int32_t bias_dtype, void* out,
    int64_t rows, int64_t columns, int64_t depth,
    int32_t kind, int32_t act, int32_t dtype,
    int32_t tile_columns, int32_t sharing, int32_t band, void* stream);

// out = [cos(x * frequencies), sin(x * frequencies)], or sines first, in float32 until it is rounded.
//   x            [rows] of x_dtype, any of the element types, x_stride elements apart (0: all are the first)
//   frequencies  [count] float32 dense
//   out          [rows, 2 * count] of dtype, none of the integers, dense; rows * count is less than 2^31
// Otherwise it returns an error and nothing is queued.
SFAST_API int32_t sfast_sinusoids(
    const void* x, int32_t x_dtype, int64_t x_stride, const void* frequencies, void* out,
    int64_t rows, int64_t count, int32_t sines_first, int32_t dtype, void* stream);
