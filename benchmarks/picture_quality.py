"""How near two sets of pictures are: PSNR and SSIM, of values from 0 to 1."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

_WINDOW, _SIGMA = 11, 1.5  #: of SSIM, as its authors have it
_C1, _C2 = 0.01**2, 0.03**2


def psnr(one: torch.Tensor, other: torch.Tensor) -> list[float]:
    """Of each picture of [N, C, H, W], in decibels; infinite where they are equal."""
    errors = (one.double() - other.double()).square().flatten(1).mean(1).tolist()
    return [math.inf if not error else -10 * math.log10(error) for error in errors]


def ssim(one: torch.Tensor, other: torch.Tensor) -> list[float]:
    """Of each picture of [N, C, H, W]: 1 where they are equal. A Gaussian window of 11 x 11, by channel."""
    one, other = one.double(), other.double()
    place = torch.arange(_WINDOW, dtype=torch.float64, device=one.device) - _WINDOW // 2
    row = torch.exp(-place.square() / (2 * _SIGMA**2))
    row = row / row.sum()
    window = (row[:, None] * row[None, :]).expand(one.shape[1], 1, _WINDOW, _WINDOW)

    def mean(image: torch.Tensor) -> torch.Tensor:
        return F.conv2d(image, window, groups=one.shape[1])

    mu, nu = mean(one), mean(other)
    var, war, cov = mean(one * one) - mu * mu, mean(other * other) - nu * nu, mean(one * other) - mu * nu
    index = ((2 * mu * nu + _C1) * (2 * cov + _C2)) / ((mu * mu + nu * nu + _C1) * (var + war + _C2))
    found: list[float] = index.flatten(1).mean(1).tolist()
    return found
