"""The meaning of ``quantise`` in plain PyTorch."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F

#: Activations by name.
ACTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
    "sigmoid": torch.sigmoid,
}
_SMALLEST = 1e-30  #: a scale: that of a row of zeros
_SMALLEST_STEP = 2.0**-23  #: likewise, by_range
_LARGEST = 127  #: of int8


def quantise(
    x: torch.Tensor,
    dtype: torch.dtype,
    scale: torch.Tensor | None = None,
    rotate: int = 0,
    act: str | None = None,
    times: torch.Tensor | None = None,
    front: torch.Tensor | None = None,
    by_range: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``(q, s)`` with ``q * s`` as near to ``x`` (rotated) as ``dtype`` allows: what :func:`scaled_linear` reads.

    Rotated, each ``rotate`` neighbours ``v`` of a row become ``v @ H``, H being :func:`hadamard` of that size: outliers
    are spread. Then::

        s = max(|row|) * (1 / 127), at least 1e-30       int8, by row: where scale is None q = round(t(t(x) / t(s))),
        from -128 to 127      t(...): rounded to x's dtype, and 0 to its smallest normal number s = t(max(|row|) /
        127.5), at least 2^-23        int8 by row, by_range: torchao's, 255 steps from -127.5 s to 127.5 s q =
        round(t(x) * (1 / s)), from -128 to 127 s = t(max(|row|) / largest)                      float8, by row: where
        scale is None, also torchao's q = t(x) / s, at most the largest of dtype in size s = scale
        float8: one for the whole tensor, from the checkpoint (1 where it has none) q = x / s, at most the largest of
        dtype in size

    What is quantised may be made of x first, each step rounded to its dtype: ``cat([front, act(x) * times], -1)``, each
    part of it where it is given.

    Everything else is float32 (the rotation, too), ties round to even: bit for bit what comfy-kitchen's kernels for
    CUDA compute, and so ComfyUI (docs/notes/0022). That t is coarse (bfloat16 knows no 100.3) is the format's meaning
    there, not an economy.

    Args:
        x: (..., K), float16, bfloat16 or float32, of any strides.
        dtype: int8 where scale is None, float8_e4m3fn or float8_e5m2 anyway.
        scale: float32, one element.
        rotate: a power of 4 that divides K, 0 for none.
        act: one of :data:`ACTS`, or None.
        times: of x's shape and dtype: what the activation gates.
        front: (..., F) in x's dtype: what lies in front of each row. K is then F more.
        by_range: only of int8, not rotated.

    Returns:
        q: (..., K) in ``dtype``, contiguous; s: float32, (..., 1) by row, or ``scale`` in its shape.

    Raises:
        ValueError: ``rotate`` doesn't divide K, or isn't a power of 4.
    """
    x = x if act is None else ACTS[act](x)
    x = x if times is None else x * times
    x = x if front is None else torch.cat([front, x], -1)
    wide = torch.promote_types(x.dtype, torch.float32)
    values = x.contiguous().to(wide)
    if rotate:
        values = rotated(values, rotate)
    largest = _LARGEST + 0.5 if by_range else torch.finfo(dtype).max if dtype.is_floating_point else _LARGEST
    if scale is None and (by_range or dtype.is_floating_point):
        scale = (values.abs().amax(-1, keepdim=True) * (1 / largest)).to(x.dtype).to(wide)
        if not by_range:
            return (values / scale).clamp(-largest, largest).to(dtype), scale.to(torch.float32)
        scale = scale.clamp(min=_SMALLEST_STEP)
        return (values * (1 / scale)).round().clamp(-_LARGEST - 1, _LARGEST).to(dtype), scale.to(torch.float32)
    if scale is None:
        scale = (values.abs().amax(-1, keepdim=True) * (1 / _LARGEST)).clamp(min=_SMALLEST)
        divisor = scale.to(x.dtype).to(wide)
        divisor = torch.where(divisor == 0, torch.finfo(x.dtype).tiny, divisor)
        quotient = (values.to(x.dtype).to(wide) / divisor).to(x.dtype)
        return quotient.round().clamp(-_LARGEST - 1, _LARGEST).to(dtype), scale.to(torch.float32)
    return (values / scale).clamp(-largest, largest).to(dtype), scale.clone()


def rotated(x: torch.Tensor, size: int) -> torch.Tensor:
    """Each ``size`` neighbours of a row of ``x`` (..., K) times :func:`hadamard`, in x's dtype.

    Raises:
        ValueError: ``size`` doesn't divide K, or isn't a power of 4.
    """
    if x.shape[-1] % size:
        raise ValueError(f"quantise: rotate is {size}, which doesn't divide {x.shape[-1]} features")
    matrix = torch.tensor(hadamard(size), dtype=x.dtype, device=x.device) / size**0.5
    return torch.matmul(x.reshape(*x.shape[:-1], -1, size), matrix).reshape(x.shape)


@functools.lru_cache(maxsize=8)
def hadamard(size: int) -> tuple[tuple[int, ...], ...]:
    """ConvRot's matrix of ones and minus ones: Kronecker powers of one of size 4.

    It is symmetric, and its square is ``size`` times the identity.

    Raises:
        ValueError: ``size`` is no power of 4.
    """
    four = ((1, 1, 1, -1), (1, 1, -1, 1), (1, -1, 1, 1), (-1, 1, 1, 1))
    matrix: tuple[tuple[int, ...], ...] = ((1,),)
    while len(matrix) < size:
        matrix = tuple(tuple(a * b for a in row for b in other) for row in matrix for other in four)
    if len(matrix) != size:
        raise ValueError(f"quantise: rotate is {size}, which is no power of 4")
    return matrix
