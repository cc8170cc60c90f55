"""The meaning of ``scaled_glu`` in plain PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..scaled_linear import scaled_linear

ACTS = ("silu", "gelu", "gelu_tanh")


def scaled_glu(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    gate_weight: torch.Tensor,
    gate_scale: torch.Tensor,
    bias: torch.Tensor | None,
    gate_bias: torch.Tensor | None,
    input_scale: torch.Tensor,
    out_dtype: torch.dtype,
    act: str,
) -> torch.Tensor:
    """``scaled_linear(x, weight) * act(scaled_linear(x, gate_weight))``, both in float32, rounded once.

    The gated linear units of N. Shazeer, "GLU Variants Improve Transformer" (2020).

    Args:
        x: (..., K), quantised, with ``input_scale``, as :func:`scaled_linear` takes both.
        weight: (N, K) of x's dtype; with ``weight_scale`` likewise.
        gate_weight: as ``weight``; with ``gate_scale``, of as many elements as ``weight_scale``.
        bias: (N,) or None.
        gate_bias: likewise, of the same dtype; both are None or neither.
        input_scale: see there.
        out_dtype: of the result.
        act: "silu", "gelu" (with erf) or "gelu_tanh".

    Returns:
        (..., N) in ``out_dtype``, contiguous.

    Raises:
        ValueError: ``act`` is none of these.
    """
    if act not in ACTS:
        raise ValueError(f"scaled_glu: act is {act!r}, must be one of {', '.join(ACTS)}")
    value = scaled_linear(x, weight, weight_scale, bias, input_scale, torch.float32)
    gate = scaled_linear(x, gate_weight, gate_scale, gate_bias, input_scale, torch.float32)
    activated = F.silu(gate) if act == "silu" else F.gelu(gate, approximate="tanh" if act == "gelu_tanh" else "none")
    return (value * activated).to(out_dtype)
