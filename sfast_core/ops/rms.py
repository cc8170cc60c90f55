"""The RMSNorm that several ops have a part of."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float, offset: float = 0.0) -> torch.Tensor:
    """``x / sqrt(mean(x * x) + eps) * (weight + offset)`` over the last dimension, in float32 where the weight is of
    another dtype than x, or has an offset.

    Args:
        x: [..., C], float.
        weight: [C] in x's dtype or float32, or None (ones, and no offset).
        eps: see there.
        offset: added to the weight: some models keep what it is more than 1.

    Returns:
        As x, rounded once.
    """
    if weight is None or not (offset or weight.dtype != x.dtype):
        return F.rms_norm(x, x.shape[-1:], weight, eps)
    wide = torch.promote_types(x.dtype, torch.float32)
    return F.rms_norm(x.to(wide), x.shape[-1:], weight.to(wide) + offset, eps).to(x.dtype)
