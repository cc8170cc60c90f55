"""Reasons that several impls of ``scaled_linear`` share."""

from __future__ import annotations

import math

import torch

from ..constraints import FLOATS

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
EIGHT_BITS = (torch.int8, *FLOAT8)
MOST_ROWS = 2**30  #: and columns, and the depth


def why_not_quantised(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    bias: torch.Tensor | None,
    input_scale: torch.Tensor | None,
    out_dtype: torch.dtype,
    rotate: int,
    kinds: tuple[torch.dtype, ...] = EIGHT_BITS,
) -> str | None:
    """Whether this is a product of two matrices of one of ``kinds``."""
    if input_scale is None or rotate:
        return "x isn't quantised"
    if weight.dtype not in kinds or x.dtype != weight.dtype:
        return f"x is {_name(x.dtype)}, weight {_name(weight.dtype)}, must be the same of {', '.join(map(_name, kinds))}"
    if input_scale.dtype != torch.float32 or input_scale.numel() != 1 and tuple(input_scale.shape) != (*x.shape[:-1], 1):
        return f"input_scale is {_name(input_scale.dtype)} {list(input_scale.shape)}, must be one float32 or one for each row of {list(x.shape)}"
    return _why_not_weight(x, weight, weight_scale, bias, out_dtype)


def why_not_dequantised(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    bias: torch.Tensor | None,
    input_scale: torch.Tensor | None,
    out_dtype: torch.dtype,
    rotate: int,
) -> str | None:
    """Whether this is a product of 16 bits with a matrix of 8."""
    if input_scale is not None:
        return "x is quantised"
    if rotate:
        return "the weight is rotated, x isn't"
    if x.dtype not in (torch.float16, torch.bfloat16) or weight.dtype not in EIGHT_BITS or out_dtype != x.dtype:
        return f"x is {_name(x.dtype)}, weight {_name(weight.dtype)}, the result {_name(out_dtype)}, must be of 16 bits, of 8, as x"
    return _why_not_weight(x, weight, weight_scale, bias, out_dtype)


def why_not_multiples(weight: torch.Tensor, columns: int, depth: int) -> str | None:
    """Whether the weight [N, K] has multiples of these numbers of columns and of depth."""
    n, k = weight.shape
    return f"weight is {list(weight.shape)}, must be multiples of {columns} and {depth}" if n % columns or k % depth else None


def why_not_out(out_dtype: torch.dtype, *dtypes: torch.dtype) -> str | None:
    """Whether the result is to be one of these."""
    return None if out_dtype in dtypes else f"the result is {_name(out_dtype)}, must be {' or '.join(map(_name, dtypes))}"


def _why_not_weight(
    x: torch.Tensor, weight: torch.Tensor, weight_scale: torch.Tensor, bias: torch.Tensor | None, out_dtype: torch.dtype
) -> str | None:
    if weight.dim() != 2 or x.dim() == 0 or x.shape[-1] != weight.shape[1]:
        return f"x is {list(x.shape)}, weight {list(weight.shape)}"
    if x.numel() == 0 or weight.numel() == 0:
        return "x or weight is empty"
    columns, rows = weight.shape[0], math.prod(x.shape[:-1])
    if max(*weight.shape, rows) > MOST_ROWS:
        return f"x of {list(x.shape)} or weight of {list(weight.shape)} is larger than 32-bit coordinates reach"
    if weight_scale.dtype != torch.float32 or weight_scale.numel() not in (1, columns):
        return f"weight_scale is {_name(weight_scale.dtype)} {list(weight_scale.shape)}, must be one float32 or {columns}"
    if bias is not None and (tuple(bias.shape) != (columns,) or bias.dtype not in FLOATS):
        return f"bias is {_name(bias.dtype)} {list(bias.shape)}, must be {columns} of float16, bfloat16 or float32"
    return why_not_out(out_dtype, *FLOATS)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
