"""GroupNorm of an image of which each device has a part: by the kernel for a whole one, with another weight and bias.

The kernel norms by the mean and variance of what a device has. What differs is the same for all of a channel's pixels:
``(x - m) / s * w + b`` is ``(x - m') / s' * w' + b'`` for ``w' = w s' / s`` and ``b' = b + w (m' - m) / s``. Weight and
bias are float32 then, whatever the image is.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def joined_moments(parts: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
    """Means and variances [1, 2, G] of parts [N, 2, G] together, of which there are so many rows."""
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
    """Weight and bias [C], in float32, by which a norm with the moments ``here`` is one with those of the ``whole``."""
    (mean_here, variance_here), (mean, variance) = here[0], whole[0]
    scale_here, scale = (each.add(eps).rsqrt() for each in (variance_here, variance))
    times, plus = (
        each.repeat_interleave(channels // each.shape[0]) for each in (scale / scale_here, (mean_here - mean) * scale)
    )
    if weight is not None:
        times, plus = times * weight, plus * weight
    return times, plus if bias is None else plus + bias
