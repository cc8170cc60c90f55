"""Kernels of a profile, by kind."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from benchmarks.kernels import KINDS, KernelRow, kernel_rows, kernel_table, kind

NAMES = {
    "linear_geglu_kernel": "GEGLU with its product",
    "gate_kernel": "GEGLU with its product",
    "cross_attention_kernel": "attention",
    "void sfast::(anonymous namespace)::halves_kernel<5>(sfast::(anonymous namespace)::HalvedArguments)": "attention",
    "softmax_kernel": "attention",
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_4x1x1_cga1x1x1_kernel0_0": "attention",
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4> >(Flash_fwd_params)": "attention",
    "fmha_cutlassF_f16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel)": "attention",
    "group_norm_small": "GroupNorm",
    "group_statistics": "GroupNorm",
    "void (anonymous namespace)::moments_kernel<__half>(Arguments<__half>, Shape, Plan)": "GroupNorm",
    "void sfast::(anonymous namespace)::cluster_kernel<__half>(sfast::(anonymous namespace)::ClusterArguments<__half>)": "GroupNorm",
    "void at::native::(anonymous namespace)::RowwiseMomentsCUDAKernel<c10::Half>(long, float, c10::Half const*)": "GroupNorm",
    "add_layer_norm_kernel": "LayerNorm, residual sums",
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::Half, float>(int, float)": "LayerNorm, residual sums",
    "sm90_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x192x64_warpgroupsize2x1x1_g1": "convolution",
    "sm90_xmma_dgrad_implicit_gemm_indexed_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x64": "convolution",
    "void cask_plugin__5x_cudnn::xmma__5x_cudnn::init_device_workspace_kernel<xmma__5x_cudnn::implicit_gemm::fprop>": "convolution",
    "void nhwcAddPaddingKernel<__half, __half, float, true, (cudnnKernelDataType_t)0>(int, int, int)": "convolution",
    "void at::native::(anonymous namespace)::upsample_nearest2d_nhwc_out_frame<c10::Half>": "convolution",
    "transposed_weight_kernel": "convolution",
    "void sfast::(anonymous namespace)::phase_weights_kernel<__half>(__half const*, __half*, long, int)": "convolution",
    "epilogue_kernel": "convolution",
    "void sfast::(anonymous namespace)::conv2d_window_kernel<__half>(sfast::(anonymous namespace)::Conv2dArguments)": "convolution",
    "nvjet_sm90_hsh_168x128_64x5_1x2_h_bz_coopA_bias_TNN": "matrix products",
    "sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize96x64x32_stage4_warpsize2x2x1_tensor16x8x16_kernel": "matrix products",
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, __half>": "matrix products",
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy_alignedK_contig<unsigned int, 4, 128>": "concatenation",
    "void sfast::(anonymous namespace)::linear_few_kernel<__half, 2>(sfast::(anonymous namespace)::LinearArguments<__half>)": "matrix products",
    "sfast::(anonymous namespace)::zero_kernel(uint4*, long)": "copies",
    "Memcpy DtoD (Device -> Device)": "copies",
    "Memset (Unknown)": "copies",
    "void sfast::(anonymous namespace)::fill_kernel<unsigned char>(unsigned char*, unsigned char, int)": "copies",
    "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda": "copies",
    "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&)": "elementwise",
    "quick_gelu_kernel": "elementwise",
    "void sfast::(anonymous namespace)::sinusoids_kernel<__half>(sfast::(anonymous namespace)::Numbers, float const*, __half*, long)": "elementwise",
    "something_new": "other",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_is_told_by_its_name(name: str) -> None:
    assert kind(name) == NAMES[name] and kind(name) in KINDS


@dataclass
class Event:
    """What the profiler gives for a kernel."""

    key: str
    self_device_time_total: float
    count: int


@dataclass
class OldEvent:
    """The same in older versions of PyTorch."""

    key: str
    self_cuda_time_total: float
    count: int


def test_kinds_are_summed_per_call_and_what_took_no_time_is_left_out() -> None:
    events = [
        Event("nvjet_a", 3000.0, 10),
        Event("nvjet_b", 1000.0, 5),
        Event("cudaGraphLaunch", 0.0, 5),
        OldEvent("epilogue_kernel", 9000.0, 5),
    ]
    assert kernel_rows("m", "ours", events, calls=5) == [
        KernelRow("m", "ours", "convolution", 1.8, 1.0),
        KernelRow("m", "ours", "matrix products", 0.8, 3.0),
    ]


def test_the_table_has_a_column_per_provider_and_adds_up() -> None:
    rows = [
        KernelRow("SDXL", "eager", "attention", 30.0, 140),
        KernelRow("SDXL", "eager", "copies", 10.0, 100),
        KernelRow("SDXL", "ours", "attention", 15.0, 70),
        KernelRow("SDXL", "ours", "convolution", 5.0, 50),
    ]
    assert kernel_table(rows).splitlines() == [
        "| kernels of one call | SDXL, eager | SDXL, ours |",
        "|---|---|---|",
        "| attention | 30.00 ms, 75% (140) | 15.00 ms, 75% (70) |",
        "| convolution |  | 5.00 ms, 25% (50) |",
        "| copies | 10.00 ms, 25% (100) |  |",
        "| **all** | **40.00 ms** (240) | **20.00 ms** (120) |",
    ]
