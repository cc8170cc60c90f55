"""The meaning of ``sinusoids`` in plain PyTorch."""

from __future__ import annotations

import torch


def sinusoids(x: torch.Tensor, frequencies: torch.Tensor, sines_first: bool, dtype: torch.dtype) -> torch.Tensor:
    """``[cos(x * frequencies), sin(x * frequencies)]`` beside one another ("Attention Is All You Need", 2017).

    Args:
        x: [N, 1], float or int64: timesteps, or widths and heights.
        frequencies: [1, H] or [H], float32.
        sines_first: the sines stand before the cosines.
        dtype: of the result, to which float32 is rounded.

    Returns:
        [N, 2 H] in ``dtype``, contiguous.
    """
    angles = x.to(frequencies.dtype) * frequencies
    halves = (angles.sin(), angles.cos()) if sines_first else (angles.cos(), angles.sin())
    return torch.cat(halves, -1).to(dtype)
