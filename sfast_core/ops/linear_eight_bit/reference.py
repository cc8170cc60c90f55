"""The meaning of ``linear_eight_bit`` in plain PyTorch."""

from __future__ import annotations

import torch

from ..quantise_rows.reference import activate

ACTS = ("none", "silu", "gelu", "gelu_tanh")


def linear_eight_bit(
    x: torch.Tensor,
    x_scales: torch.Tensor,
    weight: torch.Tensor,
    weight_scales: torch.Tensor,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
    act: str = "none",
    gate_weight: torch.Tensor | None = None,
    gate_scales: torch.Tensor | None = None,
    gate_bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """``act(x @ weight.T * x_scales * weight_scales + bias)``; with a gate ``linear(weight) * act(linear(gate_weight))``.

    Args:
        x: [..., K], torch.int8 or torch.float8_e4m3fn.
        x_scales: float32, [..., 1], or one element for all rows.
        weight: [N, K] in x's dtype.
        weight_scales: float32, [N] or [N, 1], or one element for all of the weight.
        bias: [N] in ``dtype``, or None.
        dtype: of the result: torch.float16 or torch.bfloat16.
        act: one of ACTS.
        gate_weight, gate_scales, gate_bias: of the gate, as those of the value.

    Returns:
        [..., N] in ``dtype``, contiguous. Products of int8 are summed exactly; all is in float32 until it is rounded, once.
    """

    def linear(matrix: torch.Tensor, scales: torch.Tensor, shift: torch.Tensor | None) -> torch.Tensor:
        exact = torch.float64 if x.dtype == torch.int8 else torch.float32  # sums of int8 may pass 2^24
        product = (x.to(exact) @ matrix.to(exact).t()).float() * x_scales * scales.reshape(-1)
        return product if shift is None else product + shift.float()

    value = linear(weight, weight_scales, bias)
    if gate_weight is None or gate_scales is None:
        return activate(value, act).to(dtype)
    return (value * activate(linear(gate_weight, gate_scales, gate_bias), act)).to(dtype)
