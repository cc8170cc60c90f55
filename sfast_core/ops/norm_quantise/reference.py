"""The meaning of ``norm_quantise`` in plain PyTorch."""

from __future__ import annotations

import torch

from ..hadamard import rotate
from ..quantise_rows.reference import quantise_values

NORMS = ("layer", "rms")


def norm_quantise(
    x: torch.Tensor,
    dtype: torch.dtype,
    norm: str,
    eps: float,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    scale: torch.Tensor | None = None,
    shift: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    gate: torch.Tensor | None = None,
    x_bias: torch.Tensor | None = None,
    rotation: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``s = residual + gate * (x + x_bias); n = rotate((norm(s) * weight + bias) * (1 + scale) + shift)``, n in 8 bits with a scale for each row.

    Args:
        x: [B, L, C], float.
        dtype: of n: torch.int8 or torch.float8_e4m3fn.
        norm: "layer" for ``(s - mean) / sqrt(var + eps)``, "rms" for ``s / sqrt(mean(s * s) + eps)``.
        eps: see there.
        weight, bias: [C] in x's dtype, or None.
        scale, shift: [B or 1, 1, C] in x's dtype, or None.
        residual: [B, L, C] in x's dtype, or None (zeros).
        gate: as ``scale``, or None (ones); x_bias: [C] or None (zeros). Both only with a residual.
        rotation: channels that are rotated together, 0 for none; C is a multiple of it.

    Returns:
        s [B, L, C] in x's dtype, x itself without a residual; q [B, L, C] in ``dtype``; scales [B, L, 1] in float32. s is rounded before its
        norm is taken, n only when it is quantised: in between all is in float32.
    """
    s = x
    if residual is not None:
        added = x.float() if x_bias is None else x.float() + x_bias.float()
        s = (residual.float() + (added if gate is None else added * gate.float())).to(x.dtype)
    n = s.float()
    if norm == "layer":
        n = n - n.mean(-1, keepdim=True)
    n = n * torch.rsqrt((n * n).mean(-1, keepdim=True) + eps)
    if weight is not None:
        n = n * weight.float()
    if bias is not None:
        n = n + bias.float()
    if scale is not None:
        n = n * (1 + scale.float())
    if shift is not None:
        n = n + shift.float()
    return s, *quantise_values(rotate(n, rotation), dtype)
