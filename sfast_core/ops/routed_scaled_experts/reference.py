"""The meaning of ``routed_scaled_experts`` in plain PyTorch."""

from __future__ import annotations

import torch

from ..quantise.reference import quantise
from ..routed_experts.reference import activated, part, shared_out
from ..scaled_linear.reference import scaled_linear


def routed_scaled_experts(
    x: torch.Tensor,
    indices: torch.Tensor,
    scores: torch.Tensor,
    first: torch.Tensor,
    first_scale: torch.Tensor,
    first_bias: torch.Tensor | None,
    second: torch.Tensor,
    second_scale: torch.Tensor,
    second_bias: torch.Tensor | None,
    experts: int,
    input_scale: torch.Tensor | None,
    out_dtype: torch.dtype,
    act: str = "gelu",
    gate: torch.Tensor | None = None,
    gate_scale: torch.Tensor | None = None,
    hidden_scale: torch.Tensor | None = None,
    rotate: int = 0,
) -> torch.Tensor:
    """As :func:`..routed_experts.routed_experts`, an expert's layers being :func:`scaled_linear`.

    With ``input_scale`` x is quantised (:func:`quantise` gives both), and so are the hidden rows, for which the other
    arguments of :func:`quantise` are ``hidden_scale`` and ``rotate``. Without it the weights are dequantised.

    Args:
        x: (T, D), contiguous rows, of first's dtype; or in ``out_dtype``.
        indices: (T, K), int64, below ``experts``.
        scores: (T, K), float.
        first: (experts * H, D), the experts' one below the other: int8, float8_e4m3fn or float8_e5m2, as all weights.
        first_scale: float32, (experts,), or one for each row of first: of any shape.
        first_bias: (experts * H,), without a gate.
        second: (experts * D', H).
        second_scale: as first_scale.
        second_bias: (experts * D',).
        experts: how many.
        input_scale: float32, one element or (T, 1). None where x isn't quantised.
        out_dtype: of the result.
        act: "gelu", "gelu_tanh", "silu" or "relu".
        gate: (experts * H, D).
        gate_scale: as first_scale, of as many.
        hidden_scale: float32, one element: of float8.
        rotate: the group by which int8's hidden rows are rotated; 0 for none.

    Returns:
        (T, D') in ``out_dtype``, contiguous. Here all experts compute all rows.
    """

    def layer(rows: torch.Tensor, scale: torch.Tensor | None, expert: int, *parts: torch.Tensor | None) -> torch.Tensor:
        weight, weight_scale, bias = (part(each, expert, experts) for each in parts)
        assert weight is not None and weight_scale is not None
        return scaled_linear(rows, weight, weight_scale, bias, scale, out_dtype)

    outputs = []
    for expert in range(experts):
        hidden = layer(x, input_scale, expert, first, first_scale, first_bias)
        if gate is None:
            hidden = activated(hidden, act)
        else:
            hidden = activated(layer(x, input_scale, expert, gate, gate_scale, None), act) * hidden
        scale = None
        if input_scale is not None:
            hidden, scale = quantise(hidden, x.dtype, hidden_scale, rotate)
        outputs.append(layer(hidden, scale, expert, second, second_scale, second_bias))
    return shared_out(indices, scores, outputs)
