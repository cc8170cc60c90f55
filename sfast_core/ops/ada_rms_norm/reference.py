"""The meaning of ``ada_rms_norm`` in plain PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..rms import rms_norm
from ..token_rows import broadcast


def ada_rms_norm(
    x: torch.Tensor,
    eps: float,
    weight: torch.Tensor | None = None,
    scale: torch.Tensor | None = None,
    shift: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    gate: torch.Tensor | None = None,
    x_weight: torch.Tensor | None = None,
    offset: float = 0.0,
    part: int = 1,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``s = residual + gate * x; n = s / sqrt(mean(s * s) + eps) * (weight + offset) * (1 + scale) + shift`` over the
    last dimension.

    Args:
        x: [..., C], float; [B, L, C] with a scale, shift or gate.
        eps: see there.
        weight: [C] in x's dtype or float32, or None (ones, and no offset).
        scale: [B or 1, P, C] in x's dtype, 1 row for all tokens, or as :func:`.of_each_token` takes them; or None
            (zeros).
        shift: as ``scale``.
        residual: as x in shape and dtype, or None (zeros).
        gate: as ``scale``, or None (ones). Only with a residual.
        x_weight: [C] in x's dtype, or None. Given, the RMSNorm of x with this weight and ``eps`` stands in x's place
            ("sandwich" norms). Only with a residual.
        offset: added to the weight: some models keep what it is more than 1.
        part: how many tokens have one of several rows.

    Returns:
        s, n: as x, contiguous. s is rounded to x's dtype before the mean is taken; an impl rounds nothing else in
            between. Where residual is None the first is x itself, whatever its strides.
    """
    gate, scale, shift = (broadcast(rows, part, x.shape[-2]) for rows in (gate, scale, shift))
    if x_weight is not None:
        x = F.rms_norm(x, x.shape[-1:], x_weight, eps)
    gated = x if gate is None else gate * x
    s = x if residual is None else (residual + gated).contiguous()
    n = rms_norm(s, weight, eps, offset)
    if scale is not None:
        n = n * (1 + scale)
    return s, (n if shift is None else n + shift).contiguous()
