"""The rotation that quantised checkpoints call "convrot": groups of neighbouring channels times a regular Hadamard matrix.

``H4`` below has rows of equal sums; a larger one is its Kronecker power, over the root of its size. It is symmetric and orthogonal, so that
rotating twice changes nothing, and a product of rotated activations and rotated weights is the product of both as they were.
"""

from __future__ import annotations

import torch

GROUPS = (16, 64, 256)  #: channels that are rotated together
_H4 = ((1.0, 1.0, 1.0, -1.0), (1.0, 1.0, -1.0, 1.0), (1.0, -1.0, 1.0, 1.0), (-1.0, 1.0, 1.0, 1.0))


def hadamard(size: int, dtype: torch.dtype = torch.float32, device: torch.device | None = None) -> torch.Tensor:
    """The matrix [size, size].

    Raises:
        ValueError: size is no power of 4.
    """
    factor = torch.tensor(_H4, dtype=dtype, device=device)
    matrix = torch.ones(1, 1, dtype=dtype, device=device)
    while matrix.shape[0] < size:
        matrix = torch.kron(matrix, factor)
    if matrix.shape[0] != size:
        raise ValueError(f"size is {size}, must be a power of 4")
    return matrix / size**0.5


def rotate(x: torch.Tensor, group: int) -> torch.Tensor:
    """x [..., K] with each ``group`` of its channels rotated; x itself where group is 0. K is a multiple of it."""
    if group == 0:
        return x
    return (x.unflatten(-1, (-1, group)) @ hadamard(group, x.dtype, x.device)).flatten(-2)
