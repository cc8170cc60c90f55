"""comfy-kitchen's operators as its kernels for CUDA compute, in plain PyTorch, where it isn't installed: what ComfyUI's
quantised layers call.
"""

from __future__ import annotations

import torch

from sfast_core.ops.quantise.reference import rotated
from sfast_core.weights.kitchen import DTYPES


def _quantise_fp8(x: torch.Tensor, scale: torch.Tensor, output_dtype_code: int) -> torch.Tensor:
    dtype = DTYPES[output_dtype_code]
    return (x.float() / scale).clamp(torch.finfo(dtype).min, torch.finfo(dtype).max).to(dtype)


def _dequantise_fp8(x: torch.Tensor, scale: torch.Tensor, output_dtype_code: int) -> torch.Tensor:
    return x.to(DTYPES[output_dtype_code]) * scale.to(DTYPES[output_dtype_code])


def _dequantise_int8(q: torch.Tensor, scale: torch.Tensor, output_dtype_code: int) -> torch.Tensor:
    return (q.float() * scale).to(DTYPES[output_dtype_code])


def _dequantise_rotated(q: torch.Tensor, scale: torch.Tensor, group_size: int, output_dtype_code: int) -> torch.Tensor:
    return rotated(q.float() * scale, group_size).to(DTYPES[output_dtype_code])


def quantised_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """By row, in x's dtype, as the library does it on the CPU."""
    scale = (x.abs().amax(dim=-1, keepdim=True).float() / 127.0).clamp(min=1e-30)
    return (x / scale.to(x.dtype)).round().clamp(-128.0, 127.0).to(torch.int8), scale


def _int8_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    bias: torch.Tensor | None,
    output_dtype_code: int,
    convrot: bool = False,
    convrot_groupsize: int = 256,
    input_act: str | None = None,
) -> torch.Tensor:
    if input_act == "gelu_tanh":
        x = torch.nn.functional.gelu(x, approximate="tanh")
    elif input_act == "swiglu":
        gate, up = x.chunk(2, dim=-1)
        x = torch.nn.functional.silu(gate) * up
    x = rotated(x, convrot_groupsize) if convrot else x
    q, scale = quantised_rows(x)
    out = (torch.matmul(q.double(), weight.double().t()).float() * (scale * weight_scale.reshape(1, -1))).to(
        DTYPES[output_dtype_code]
    )
    return out if bias is None else out + bias.to(out.dtype)


_OPERATORS = {
    "quantize_fp8": (_quantise_fp8, "(Tensor x, Tensor scale, int output_dtype_code) -> Tensor"),
    "dequantize_fp8": (_dequantise_fp8, "(Tensor x, Tensor scale, int output_dtype_code) -> Tensor"),
    "dequantize_int8_simple_dtype": (_dequantise_int8, "(Tensor q, Tensor scale, int output_dtype_code) -> Tensor"),
    "dequantize_int8_convrot_weight_dtype": (
        _dequantise_rotated,
        "(Tensor q, Tensor scale, int group_size, int output_dtype_code) -> Tensor",
    ),
    "int8_linear": (
        _int8_linear,
        "(Tensor x, Tensor weight, Tensor weight_scale, Tensor? bias, int output_dtype_code, bool convrot=False, "
        "int convrot_groupsize=256, str? input_act=None) -> Tensor",
    ),
}


def kitchen() -> object:
    """``torch.ops.comfy_kitchen`` with these operators."""
    for name, (function, schema) in _OPERATORS.items():
        if not hasattr(torch.ops.comfy_kitchen, name):
            torch.library.custom_op(f"comfy_kitchen::{name}", function, mutates_args=(), schema=schema).register_fake(
                function
            )
    return torch.ops.comfy_kitchen
