"""The meaning of ``scaled_linear`` in plain PyTorch."""

from __future__ import annotations

import torch

from ..quantise.reference import rotated

_EXACT_DEPTH = 1024  #: so many products of int8 have a sum that float32 has exactly: 128 * 128 * 1024 is 2^24


def scaled_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    bias: torch.Tensor | None,
    input_scale: torch.Tensor | None,
    out_dtype: torch.dtype,
    rotate: int = 0,
) -> torch.Tensor:
    """``x @ (weight * weight_scale).T + bias``, of an input of 8 bits too or of 16.

    With ``input_scale`` x is quantised (:func:`quantise` gives both)::

        y[m, n] = (sum_k x[m, k] * weight[n, k]) * (input_scale[m] * weight_scale[n]) + bias[n]

    the sum in int32 for int8 (exact), in float32 for float8, the rest in float32, rounded once. Without it the weight
    is dequantised, in x's dtype, and each ``rotate`` neighbours of a row of x are rotated first, as the weight's were
    when it was quantised.

    ======================================  ================  ==============  =================  ======
    checkpoint                              x, weight         weight_scale    input_scale        rotate
    ======================================  ================  ==============  =================  ======
    int8_tensorwise                         int8, int8        one, or (N, 1)  (..., 1)           0
    int8_tensorwise with convrot            int8, int8        (N, 1)          (..., 1)           0, x is rotated already
    float8_e4m3fn, float8_e5m2              both of that      one             one                0
    any of them, full_precision_matrix_mult  16 bits, 8 bits  the same        None               0, of convrot its group
    ======================================  ================  ==============  =================  ======

    Args:
        x: (..., K): weight's dtype, or float16, bfloat16 or float32.
        weight: (N, K), contiguous: int8, float8_e4m3fn or float8_e5m2.
        weight_scale: float32, one element or N: of shape (), (1,), (N,) or (N, 1).
        bias: (N,) or None.
        input_scale: float32, one element, or one for each row of x: (..., 1). None where x isn't quantised.
        out_dtype: of the result.
        rotate: the group of a rotated weight, where x isn't quantised; else 0.

    Returns:
        (..., N) in ``out_dtype``, contiguous.
    """
    scale = weight_scale.reshape(-1)
    if input_scale is None:
        wide = torch.promote_types(x.dtype, torch.float32)
        plain = (weight.to(wide) * scale.to(wide).reshape(-1, 1)).to(x.dtype)
        x = rotated(x.to(wide), rotate).to(x.dtype) if rotate else x
        return torch.nn.functional.linear(x, plain, None if bias is None else bias.to(x.dtype)).to(out_dtype)
    total = _product_of_8_bits(x, weight)
    out = total * (input_scale.float() * scale)
    return (out if bias is None else out + bias.float()).to(out_dtype)


def _product_of_8_bits(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """``x @ weight.T``, exact and then rounded to float32: sums of products of 8 bits fit into float64's 53."""
    if x.dtype == weight.dtype == torch.int8 and weight.shape[1] <= _EXACT_DEPTH:
        return torch.matmul(x.float(), weight.float().t())
    return torch.matmul(x.double(), weight.double().t()).float()
