"""GroupNorm of an image that is divided between devices: by the kernel for a whole image, with another weight and bias.

The kernel uses the mean and variance of a device's own part. The correction is the same for all pixels of a channel:
``(x - m) / s * w + b`` equals ``(x - m') / s' * w' + b'`` for ``w' = w s' / s`` and ``b' = b + w (m' - m) / s``. Weight
and bias become float32 by that, whatever the image's dtype.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def joined_moments(parts: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
    """Means and variances [1, 2, G] of a whole, from those [N, 2, G] of its parts with so many rows each."""
    shares = [count / sum(counts) for count in counts]
    mean = _weighed(parts[:, 0], shares)
    apart = parts[:, 1] + (parts[:, 0] - mean).square()
    return torch.stack([mean, _weighed(apart, shares)])[None]


def _weighed(parts: torch.Tensor, shares: Sequence[float]) -> torch.Tensor:
    total = parts[0] * shares[0]
    for part, share in zip(parts[1:], shares[1:], strict=True):
        total = total + part * share
    return total


def adapted(
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    here: torch.Tensor,
    whole: torch.Tensor,
    channels: int,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight and bias [C], in float32, that make a norm by the moments ``here`` one by those of the ``whole``."""
    (mean_here, variance_here), (mean, variance) = here[0], whole[0]
    scale_here, scale = (each.add(eps).rsqrt() for each in (variance_here, variance))
    times, plus = (
        each.repeat_interleave(channels // each.shape[0]) for each in (scale / scale_here, (mean_here - mean) * scale)
    )
    if weight is not None:
        times, plus = times * weight, plus * weight
    return times, plus if bias is None else plus + bias
