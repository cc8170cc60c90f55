// Linear layers of 8-bit operands: the launch. How the kernel works is in scaled_linear.cuh.
#include <algorithm>

#include "scaled_linear.cuh"

#if CUDART_VERSION >= 12000

namespace sfast {
namespace {

// What the operands are.
enum : int32_t { SFAST_INT8 = 0, SFAST_E4M3 = 1 };

#ifndef SFAST_HOPPER
struct Int8 {};
struct E4M3 {};
#endif

using EightBitKernel = void (*)(eight_bit::Arguments);

template <typename Kind>
EightBitKernel kernel_of(int32_t columns, bool gate) {
    using namespace eight_bit;
    if (gate) return columns == 256 ? scaled_linear_kernel<Kind, Tile<256, true>> : nullptr;
    switch (columns) {
        case 128: return scaled_linear_kernel<Kind, Tile<128, false>>;
        case 192: return scaled_linear_kernel<Kind, Tile<192, false>>;
        case 256: return scaled_linear_kernel<Kind, Tile<256, false>>;
        default: return nullptr;
    }
}

EightBitKernel kernel_of(int32_t kind, int32_t columns, bool gate) {
    return kind == SFAST_INT8 ? kernel_of<Int8>(columns, gate) : kernel_of<E4M3>(columns, gate);
}

int64_t parts_of(int64_t size, int64_t part) { return (size + part - 1) / part; }

// A map of 8-bit rows, boxes of kDepth columns, in 16-bit units.
cudaError_t encode_rows(
    TensorMapEncoder encoder, CUtensorMap* map, const void* data, int64_t rows, int64_t depth, int box_rows) {
    return encode_map<2>(
        encoder, map, SFAST_FLOAT16, data, {depth / 2, rows}, {depth / 2}, {eight_bit::kDepth / 2, box_rows});
}

}  // namespace
}  // namespace sfast

// cudaSuccess where sfast_scaled_linear can run on the current device: compute capability 9.0, and a build for it. Runs
// nothing.
SFAST_API int32_t sfast_scaled_linear_status() {
    using namespace sfast;
    const cudaError_t error = has_code(kernel_of(SFAST_INT8, 256, false));
    if (error != cudaSuccess) return error;
    TensorMapEncoder encoder;
    return tensor_map_encoder(&encoder);
}

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
//   out            [rows, columns] dense, aligned to 16 bytes
// out of `dtype`, SFAST_FLOAT16 or SFAST_BFLOAT16. How it is cut: tiles of 128 rows and tile_columns (128, 192 or 256;
// with a gate 256, 128 of each weight), `sharing` blocks (1, 2, 4) that share columns, `band` groups of so many rows at
// a time. act is none, SiLU or GELU.
SFAST_API int32_t sfast_scaled_linear(const void* x, const void* weight, const void* gate_weight,
    const void* row_scales, int32_t row_scale_step, const void* column_scales, const void* gate_scales,
    int32_t column_scale_step, const void* bias, const void* gate_bias, int32_t bias_dtype, void* out, int64_t rows,
    int64_t columns, int64_t depth, int32_t kind, int32_t act, int32_t dtype, int32_t tile_columns, int32_t sharing,
    int32_t band, void* stream) {
    using namespace sfast;
    using namespace sfast::eight_bit;
    if ((kind != SFAST_INT8 && kind != SFAST_E4M3) || (dtype != SFAST_FLOAT16 && dtype != SFAST_BFLOAT16))
        return cudaErrorInvalidValue;
    const bool gate = gate_weight != nullptr;
    const EightBitKernel kernel = kernel_of(kind, tile_columns, gate);
    if (kernel == nullptr) return cudaErrorInvalidValue;
    if (act != SFAST_ACT_NONE && act != SFAST_ACT_SILU && act != SFAST_ACT_GELU && act != SFAST_ACT_GELU_TANH)
        return cudaErrorInvalidValue;
    if (rows <= 0 || columns <= 0 || depth <= 0 || columns % 8 != 0 || depth % 16 != 0) return cudaErrorInvalidValue;
    if (rows > INT32_MAX / 2 || columns > INT32_MAX / 2 || depth > INT32_MAX / 2) return cudaErrorInvalidValue;
    if ((sharing != 1 && sharing != 2 && sharing != kMostSharing) || band < 1) return cudaErrorInvalidValue;
    if (row_scales == nullptr || column_scales == nullptr || (gate && gate_scales == nullptr))
        return cudaErrorInvalidValue;
    for (const int32_t step : {row_scale_step, column_scale_step}) {
        if (step != 0 && step != 1) return cudaErrorInvalidValue;
    }
    if (bias_dtype != SFAST_FLOAT32 && bias_dtype != SFAST_FLOAT16 && bias_dtype != SFAST_BFLOAT16)
        return cudaErrorInvalidValue;
    for (const void* pointer : {row_scales, column_scales, gate_scales}) {
        if (reinterpret_cast<uintptr_t>(pointer) % sizeof(float) != 0) return cudaErrorMisalignedAddress;
    }
    for (const void* pointer : {x, weight, gate_weight, static_cast<const void*>(out)}) {
        if (!is_aligned(pointer)) return cudaErrorMisalignedAddress;
    }

    TensorMapEncoder encoder;
    cudaError_t error = tensor_map_encoder(&encoder);
    if (error != cudaSuccess) return error;
    Arguments arguments{};
    error = encode_rows(encoder, &arguments.x, x, rows, depth, kRows);
    if (error != cudaSuccess) return error;
    const int box_rows = tile_columns / boxes_of(sharing, gate);
    error = encode_rows(encoder, &arguments.weight, weight, columns, depth, box_rows);
    if (error != cudaSuccess) return error;
    if (gate) {
        error = encode_rows(encoder, &arguments.gate_weight, gate_weight, columns, depth, box_rows);
        if (error != cudaSuccess) return error;
    }
    error = encode_map<2>(encoder, &arguments.out, dtype, out, {columns, rows}, {columns}, {kStoreColumns, kWarpRows},
        CU_TENSOR_MAP_SWIZZLE_64B);
    if (error != cudaSuccess) return error;
    const int written = gate ? tile_columns / 2 : tile_columns;
    const int64_t row_groups = parts_of(parts_of(rows, kRows), sharing), column_tiles = parts_of(columns, written);
    if (row_groups > INT32_MAX / 8 / column_tiles) return cudaErrorInvalidValue;
    arguments.row_scales = static_cast<const float*>(row_scales);
    arguments.column_scales = static_cast<const float*>(column_scales);
    arguments.gate_scales = static_cast<const float*>(gate_scales);
    arguments.row_scale_step = row_scale_step;
    arguments.column_scale_step = column_scale_step;
    arguments.bias = {bias, bias_dtype};
    arguments.gate_bias = {gate_bias, bias_dtype};
    arguments.rows = int(rows);
    arguments.columns = int(columns);
    arguments.steps = int(parts_of(depth, kDepth));
    arguments.sharing = sharing;
    arguments.row_groups = int(row_groups);
    arguments.column_tiles = int(column_tiles);
    arguments.band = std::min(band, arguments.row_groups);
    arguments.act = act;
    arguments.half = dtype == SFAST_FLOAT16;

    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
    if (error != cudaSuccess) return told(error);
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {unsigned(sharing), 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(unsigned(sharing));
    config.blockDim = dim3(kBlockThreads);
    config.dynamicSmemBytes = kSharedBytes;
    config.attrs = &attribute;
    config.numAttrs = 1;
    int fitting = 0;
    error = cudaOccupancyMaxActiveClusters(&fitting, kernel, &config);
    if (error != cudaSuccess) return told(error);
    config.gridDim = dim3(unsigned(std::min(int(row_groups * column_tiles), std::max(fitting, 1)) * sharing));
    config.stream = static_cast<cudaStream_t>(stream);
    return told(cudaLaunchKernelEx(&config, kernel, arguments));
}

#endif  // CUDA 11 has neither tensor maps nor wgmma, so that these functions are missing
