"""The meaning of ``linear`` in plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

ACTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "none": lambda h: h,
    "gelu": F.gelu,
    "gelu_tanh": lambda h: F.gelu(h, approximate="tanh"),
    "quick_gelu": lambda h: h * torch.sigmoid(1.702 * h),
    "silu": F.silu,
    "relu": F.relu,
}


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    act: str = "none",
    gated: bool = False,
    residual: torch.Tensor | None = None,
    gate_first: bool = False,
) -> torch.Tensor:
    """``act(h) + residual`` where ``h = x @ weight.T + bias``; gated, ``value * act(gate) + residual`` where
    ``value, gate = h.chunk(2, -1)``.

    Args:
        x: [..., K], float.
        weight: [N, K] in x's dtype; gated, the rows of the value first, those of the gate behind them, or the other way
            round.
        bias: [N] in x's dtype, or None (zeros).
        act: "none", "gelu" (by erf), "gelu_tanh" (its tanh form), "quick_gelu" (``h * sigmoid(1.702 h)``), "silu" or
            "relu".
        gated: whether half of the result is the gate of the other: GEGLU with "gelu".
        residual: [..., N], gated [..., N / 2], in x's dtype, or None.
        gate_first: gated, whether the gate's rows are the first. Else it is False.

    Returns:
        [..., N], gated [..., N / 2], in x's dtype, contiguous. An impl may leave the product unrounded until all is
        done.

    Raises:
        ValueError: act is none of the above, ``weight`` has an odd number of rows for a gate, or ``gate_first`` of no
        gate.
    """
    if act not in ACTS:
        raise ValueError(f"linear: act is {act!r}, must be one of {', '.join(ACTS)}")
    if gated and weight.shape[0] % 2:
        raise ValueError(
            f"linear: weight has {weight.shape[0]} rows, must be an even number (value rows and gate rows)"
        )
    if gate_first and not gated:
        raise ValueError("linear: gate_first is True, must be False where gated is")
    h = product(x, weight, bias)
    if gated:
        value, gate = h.chunk(2, -1)[::-1] if gate_first else h.chunk(2, -1)
        h = value * ACTS[act](gate)
    else:
        h = ACTS[act](h)
    return h if residual is None else (h + residual).contiguous()


_MANY_ROWS = 128  #: of a product: no tile of a kernel is higher


def product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """``F.linear`` as one matrix product.

    Of tokens whose images don't lie one behind another ([L, B, K] of what lies as [B, L, K]) PyTorch makes a product
    for each of the first dimension, of B rows, unless the weight could get a gradient: 53 ms where one takes 1.1 (H100,
    Cosmos, L 20,480, B 2). A part of each image's tokens is such a batch, too, but of large products: it takes no more
    than one, which a copy would have to come before (33 of 155 us, SD3's images).
    """
    if x.dim() < 3 or x.shape[-2] >= _MANY_ROWS or _is_matrix(x):
        return F.linear(x, weight, bias)
    return F.linear(x.reshape(-1, x.shape[-1]), weight, bias).view(*x.shape[:-1], weight.shape[0])


def _is_matrix(x: torch.Tensor) -> bool:
    """Whether the rows of x [..., K] can be counted through without a copy, as far as PyTorch asks."""
    return all(x.stride(dim) == x.stride(dim + 1) * x.shape[dim + 1] for dim in range(x.dim() - 2))
