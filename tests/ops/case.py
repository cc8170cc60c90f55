"""What an op's test cases are made of. A file of cases is ``tests/ops/cases/<op>.py``; see :mod:`tests.ops.test_ops`
for what is checked.

It exports ``CASES: list[Case]``: small inputs (they also run in Triton's interpreter, all of an op's in a few seconds).
Optional beside it:

``GPU_CASES: list[Case]``       real sizes, run only where there is a GPU;
``CPU_IMPLS: tuple[str, ...]``  impls that run on CPU tensors without an interpreter. Impls whose name begins with
                                "triton" are interpreted where there is no GPU and need not be named.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Made = tuple[tuple[Any, ...], dict[str, Any]]  #: a call's arguments, and those that it is given by name
Make = Callable[[torch.dtype, torch.device], Made]


@dataclass(frozen=True)
class Case:
    """Arguments for an op: ``make(dtype, device)`` gives ``(args, kwargs)``, the same values at every call."""

    id: str
    make: Make
    slow: bool = False  #: needs many gigabytes or seconds: only with ``--run-slow``
    noise: float = 0.0  #: of what the op sums in, where that is coarser than float32, relative to the result


class Data:
    """Seeded random tensors of one dtype on one device:
    ``Data(dtype, device).normal(2, 64, 8, 8, channels_last=True)``.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device, seed: int = 0) -> None:
        self.dtype = dtype
        self.device = device
        self.generator = None if device.type == "meta" else torch.Generator(device).manual_seed(seed)

    def normal(
        self,
        *shape: int,
        mean: float = 0.0,
        std: float = 1.0,
        dtype: torch.dtype | None = None,
        channels_last: bool = False,
    ) -> torch.Tensor:
        """A tensor drawn from the normal distribution in float32 and then rounded to ``dtype``."""
        values = torch.randn(shape, generator=self.generator, device=self.device)
        values = values.mul_(std).add_(mean).to(dtype or self.dtype)
        return (
            values.contiguous(memory_format=torch.channels_last_3d if len(shape) == 5 else torch.channels_last)
            if channels_last
            else values
        )
