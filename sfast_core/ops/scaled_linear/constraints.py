"""Reasons that several impls of ``scaled_linear`` share."""

from __future__ import annotations

import math

import torch

from ..needs import FLOATS, HALVES, dtype_name
from ..spec import Arguments

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
EIGHT_BITS = (torch.int8, *FLOAT8)
MOST_ROWS = 2**30  #: and columns, and the depth


def why_not_quantised(call: Arguments, kinds: tuple[torch.dtype, ...] = EIGHT_BITS) -> str | None:
    """Whether this is a product of two matrices of one of ``kinds``."""
    if call.input_scale is None or call.rotate:
        return "x isn't quantised"
    if call.weight.dtype not in kinds or call.x.dtype != call.weight.dtype:
        return (
            f"x is {dtype_name(call.x.dtype)}, weight {dtype_name(call.weight.dtype)}, must be the same of"
            f" {', '.join(map(dtype_name, kinds))}"
        )
    if (
        call.input_scale.dtype != torch.float32
        or call.input_scale.numel() != 1
        and tuple(call.input_scale.shape) != (*call.x.shape[:-1], 1)
    ):
        return (
            f"input_scale is {dtype_name(call.input_scale.dtype)} {list(call.input_scale.shape)}, must be one float32"
            f" or one for each row of {list(call.x.shape)}"
        )
    return _why_not_weight(call)


def why_not_dequantised(call: Arguments) -> str | None:
    """Whether this is a product of 16 bits with a matrix of 8."""
    if call.input_scale is not None:
        return "x is quantised"
    if call.rotate:
        return "the weight is rotated, x isn't"
    if call.x.dtype not in HALVES or call.weight.dtype not in EIGHT_BITS or call.out_dtype != call.x.dtype:
        return (
            f"x is {dtype_name(call.x.dtype)}, weight {dtype_name(call.weight.dtype)}, the result"
            f" {dtype_name(call.out_dtype)}, must be of 16 bits, of 8, as x"
        )
    return _why_not_weight(call)


def why_not_multiples(weight: torch.Tensor, columns: int, depth: int) -> str | None:
    """Whether the weight [N, K] has multiples of these numbers of columns and of depth."""
    n, k = weight.shape
    if n % columns or k % depth:
        return f"weight is {list(weight.shape)}, must be multiples of {columns} and {depth}"
    return None


def why_not_out(out_dtype: torch.dtype, *dtypes: torch.dtype) -> str | None:
    """Whether the result is to be one of these."""
    if out_dtype in dtypes:
        return None
    return f"the result is {dtype_name(out_dtype)}, must be {' or '.join(map(dtype_name, dtypes))}"


def _why_not_weight(call: Arguments) -> str | None:
    if call.weight.dim() != 2 or call.x.dim() == 0 or call.x.shape[-1] != call.weight.shape[1]:
        return f"x is {list(call.x.shape)}, weight {list(call.weight.shape)}"
    if call.x.numel() == 0 or call.weight.numel() == 0:
        return "x or weight is empty"
    columns, rows = call.weight.shape[0], math.prod(call.x.shape[:-1])
    if max(*call.weight.shape, rows) > MOST_ROWS:
        return (
            f"x of {list(call.x.shape)} or weight of {list(call.weight.shape)} is larger than 32-bit coordinates reach"
        )
    if call.weight_scale.dtype != torch.float32 or call.weight_scale.numel() not in (1, columns):
        return (
            f"weight_scale is {dtype_name(call.weight_scale.dtype)} {list(call.weight_scale.shape)}, must be one"
            f" float32 or {columns}"
        )
    if call.bias is not None and (tuple(call.bias.shape) != (columns,) or call.bias.dtype not in FLOATS):
        return (
            f"bias is {dtype_name(call.bias.dtype)} {list(call.bias.shape)}, must be {columns} of float16, bfloat16 or"
            " float32"
        )
    return why_not_out(call.out_dtype, *FLOATS)
