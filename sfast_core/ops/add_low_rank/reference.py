"""The meaning of ``add_low_rank`` in plain PyTorch."""

from __future__ import annotations

import torch

GROUP = 16  #: ranks with one factor


def add_low_rank(weight: torch.Tensor, up: torch.Tensor, down: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """``weight + up @ (factors * down)``: the sums in float32, rounded to weight's dtype before they are added.

    Args:
        weight: (N, ...), float.
        up: (N, R), float.
        down: (R, K), K being the elements of a row of ``weight``; in up's dtype.
        factors: (R,) float32, the same for each :data:`GROUP`.

    Returns:
        as ``weight``, contiguous.
    """
    wide = torch.promote_types(up.dtype, torch.float32)
    added = up.to(wide) @ (down.to(wide) * factors[:, None].to(wide))
    return weight + added.to(weight.dtype).reshape(weight.shape)
