"""The meaning of ``ada_layer_norm`` in plain PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..token_rows import broadcast


def ada_layer_norm(
    x: torch.Tensor,
    scale: torch.Tensor,
    shift: torch.Tensor,
    eps: float,
    residual: torch.Tensor | None = None,
    gate: torch.Tensor | None = None,
    x_bias: torch.Tensor | None = None,
    part: int = 1,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``s = residual + gate * (x + x_bias); n = (s - mean(s)) / sqrt(var(s) + eps)`` over the last dimension, and
    ``(n * weight + bias) * (1 + scale) + shift``.

    The adaLN block of W. Peebles and S. Xie, "Scalable Diffusion Models with Transformers" (2022).

    Args:
        x: [B, L, C], float.
        scale: [B or 1, P, C] in x's dtype: 1 row for all tokens, or as :func:`.of_each_token` takes them.
        shift: as ``scale``.
        eps: added to the (biased) variance.
        residual: [B, L, C] in x's dtype, or None (zeros).
        gate: as ``scale``, or None (ones). Only with a residual.
        x_bias: [C] in x's dtype, the bias of the linear layer that made x, or None. Only with a residual.
        part: how many tokens have one of several rows.
        weight: [C] in x's dtype, or None (ones).
        bias: as ``weight``, or None (zeros).

    Returns:
        s, n: [B, L, C] in x's dtype, contiguous. s is rounded to that dtype before the statistics are taken; an impl
            rounds nothing else in between. Where residual is None the first is x itself, whatever its strides.
    """
    gate, scale, shift = (broadcast(rows, part, x.shape[1]) for rows in (gate, scale, shift))
    if x_bias is not None:
        x = x + x_bias
    gated = x if gate is None else gate * x
    s = x if residual is None else (residual + gated).contiguous()
    normed = F.layer_norm(s, s.shape[-1:], weight, bias, eps)
    return s, (normed * (1 + scale) + shift).contiguous()
