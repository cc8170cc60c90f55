"""The meaning of ``norm_quantise`` in plain PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..quantise import quantise
from ..rms import rms_norm
from ..token_rows import broadcast


def norm_quantise(
    x: torch.Tensor,
    norm: str,
    eps: float,
    dtype: torch.dtype,
    input_scale: torch.Tensor | None = None,
    rotate: int = 0,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    scale: torch.Tensor | None = None,
    shift: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    gate: torch.Tensor | None = None,
    x_bias: torch.Tensor | None = None,
    x_weight: torch.Tensor | None = None,
    by_range: bool = False,
    part: int = 1,
    offset: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``s = residual + gate * (x + x_bias); n = (norm(s) * weight + bias) * (1 + scale) + shift``; s, and n quantised.

    Args:
        x: [..., C], float; [B, L, C] with a scale, shift or gate.
        norm: over the last dimension: "layer" for ``(s - mean(s)) / sqrt(var(s) + eps)``, "rms" for
            ``s / sqrt(mean(s * s) + eps)``.
        eps: see there.
        dtype: as :func:`.quantise` takes it, as are ``rotate``, ``by_range`` and, as its ``scale``, ``input_scale``.
        input_scale: float32, one element, of a float8 that isn't quantised by row.
        rotate: a power of 4 that divides C, 0 for none.
        weight: [C] in x's dtype, of "rms" also in float32, or None (ones, and no offset).
        bias: likewise, or None (zeros). Only of "layer".
        scale: [B or 1, P, C] in x's dtype, 1 row for all tokens, or as :func:`.of_each_token` takes them; or None
            (zeros).
        shift: as ``scale``.
        residual: as x in shape and dtype, or None (zeros).
        gate: as ``scale``, or None (ones). Only with a residual.
        x_bias: [C] in x's dtype, the bias of the linear layer that made x, or None. Only with a residual, and of
            "layer".
        x_weight: [C] in x's dtype, or None. Given, the RMSNorm of x with this weight and ``eps`` stands in x's place
            ("sandwich" norms). Only with a residual, and of "rms".
        part: how many tokens have one of several rows.
        offset: added to the weight. Only of "rms".

    Returns:
        s: as x, contiguous; where residual is None, x itself, whatever its strides. q: [..., C] in ``dtype``,
            contiguous; and its scales: float32,
        [..., 1] by row, or ``input_scale`` in its shape. s and n are rounded to x's dtype, so that q is what
        :func:`.quantise` makes of a norm that is written down. Of "layer" an impl rounds nothing else in between, as
        the ops for LayerNorm don't; of "rms" it rounds what PyTorch's operators round, of which such a norm is made
        elsewhere.
    """
    gate, scale, shift = (broadcast(rows, part, x.shape[-2]) for rows in (gate, scale, shift))
    if x_bias is not None:
        x = x + x_bias
    if x_weight is not None:
        x = F.rms_norm(x, x.shape[-1:], x_weight, eps)
    gated = x if gate is None else gate * x
    s = x if residual is None else (residual + gated).contiguous()
    n = rms_norm(s, weight, eps, offset) if norm == "rms" else F.layer_norm(s, s.shape[-1:], weight, bias, eps)
    if scale is not None:
        n = n * (1 + scale)
    if shift is not None:
        n = n + shift
    return s, *quantise(n, dtype, input_scale, rotate, by_range=by_range)
