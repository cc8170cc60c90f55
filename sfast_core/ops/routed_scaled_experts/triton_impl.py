"""A mixture of quantised experts in Triton: as of 16 bits, with products of 8 bits, and the hidden rows quantised
between them: to float8 where the first product writes them, to int8 by a launch of its own, which needs whole rows.
"""

from __future__ import annotations

import torch

from ...target import Target
from ..linear.triton_gate_impl import gate_kind
from ..needs import FLOATS, dtype_name
from ..packs import dense
from ..quantise import OP as QUANTISE
from ..quantise import triton_rows_impl
from ..routed_experts import triton_impl as routed
from ..routed_experts.triton_impl import Layer, product, routes_of
from ..scaled_linear.constraints import EIGHT_BITS, FLOAT8, why_not_out
from ..scaled_linear.triton_impl import why_no_kernel
from ..spec import Arguments

_SCALES = "input_scale first_scale second_scale gate_scale hidden_scale"


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why the kernels can't compute this, or None."""
    if reason := routed.why_not(target, call) or why_no_kernel(target, call.first):
        return reason
    weights = [weight for weight in (call.first, call.second, call.gate) if weight is not None]
    if call.first.dtype not in EIGHT_BITS or any(weight.dtype != call.first.dtype for weight in weights):
        return f"weights are {', '.join(dtype_name(weight.dtype) for weight in weights)}, must be one of 8 bits"
    if reason := why_not_out(call.out_dtype, *FLOATS):
        return reason
    for bias in (call.first_bias, call.second_bias):
        if bias is not None and bias.dtype not in FLOATS:
            return f"a bias is {dtype_name(bias.dtype)}"
    return _why_not_scales(call) or (
        _why_not_quantised(target, call) if call.input_scale is not None else _why_not_dequantised(call)
    )


def _why_not_scales(call: Arguments) -> str | None:
    for name in _SCALES.split():
        scale = getattr(call, name)
        if scale is not None and scale.dtype != torch.float32:
            return f"{name} is {dtype_name(scale.dtype)}, must be float32"
    for name in ("first", "second", "gate"):
        weight, scale = getattr(call, name), getattr(call, f"{name}_scale")
        if weight is not None and (scale is None or scale.numel() not in (call.experts, weight.shape[0])):
            sizes = None if scale is None else list(scale.shape)
            return f"{name}_scale is {sizes}, must be one for each of {call.experts} experts or {weight.shape[0]} rows"
    if call.gate is not None and call.gate_scale.numel() != call.first_scale.numel():
        return "the gate has other scales than what it is for"
    return None


def _why_not_quantised(target: Target, call: Arguments) -> str | None:
    if call.x.dtype != call.first.dtype:
        return f"x is {dtype_name(call.x.dtype)}, weights are {dtype_name(call.first.dtype)}"
    if call.input_scale.numel() not in (1, call.x.shape[0]):
        return f"input_scale is {list(call.input_scale.shape)}, x is {list(call.x.shape)}"
    if call.first.dtype in FLOAT8:
        one = call.hidden_scale is not None and call.hidden_scale.numel() == 1 and not call.rotate
        return None if one else "hidden rows of float8 are to be quantised by one scale, not rotated"
    hidden = call.x.new_empty((call.indices.numel(), call.second.shape[1]), dtype=call.out_dtype)
    rows = next(impl for impl in QUANTISE.impls if impl.name == "triton_rows")
    return rows.why_not(target, hidden, call.x.dtype, call.hidden_scale, call.rotate)


def _why_not_dequantised(call: Arguments) -> str | None:
    if call.rotate or call.hidden_scale is not None:
        return "hidden rows are to be quantised, x isn't"
    return None if call.x.dtype == call.out_dtype else f"x is {dtype_name(call.x.dtype)}, not as the result"


def launch(
    x,
    indices,
    scores,
    first,
    first_scale,
    first_bias,
    second,
    second_scale,
    second_bias,
    experts,
    input_scale,
    out_dtype,
    act="gelu",
    gate=None,
    gate_scale=None,
    hidden_scale=None,
    rotate=0,
) -> torch.Tensor:
    """As :func:`.reference.routed_scaled_experts`, what is between two products rounded once."""
    up = Layer(first, first_bias, gate, first_scale, gate_scale)
    down = Layer(second, second_bias, scale=second_scale)
    routes, choices = routes_of(indices, experts), indices.shape[1]
    kind = "relu" if act == "relu" else gate_kind(out_dtype, act)
    dtype = out_dtype if hidden_scale is None else x.dtype
    hidden = product(dense(x), up, routes, dtype, choices, kind, row_scales=input_scale, out_scale=hidden_scale)
    scale = hidden_scale
    if input_scale is not None and hidden_scale is None:
        hidden, scale = triton_rows_impl.launch(hidden, x.dtype, None, rotate)
    parts = product(hidden, down, routes, out_dtype, scores=scores, row_scales=scale)
    return parts.view(*indices.shape, -1).sum(1)
