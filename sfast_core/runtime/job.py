"""An op call to choose an impl for, with example arguments of its shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch.utils import _pytree

from ..weights.channels_last import INNERMOST

REFERENCE = "reference"  #: the name of plain PyTorch among the candidates
_FILLED_AT_ONCE = 2**22  #: elements of a float8 tensor that are filled with random numbers at a time


class Candidate(Protocol):
    """An impl as the tuner sees it."""

    @property
    def name(self) -> str: ...

    @property
    def launch(self) -> Callable[..., Any]: ...

    @property
    def carries_over(self) -> bool: ...

    @property
    def per_thread(self) -> bool: ...


class Job:
    """One op call to choose an impl for.

    Args:
        key: under which the choice is kept on disk.
        impls: those that can compute it.
        args: its arguments, tensors on the meta device.
        kwargs: its keyword arguments, likewise.
        channels_last: whether its images and videos have their channels innermost.
        family: calls of one family differ in size alone, and the nearer their sizes, the likelier the same choice.
        size: about proportional to the time that the call takes.
    """

    def __init__(
        self,
        key: str,
        impls: Sequence[Candidate],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        channels_last: bool = False,
        family: str = "",
        size: int = 0,
    ) -> None:
        self.key = key
        self.family, self.size = family or key, max(1, size)
        self.impls = {impl.name: impl for impl in impls}
        self._args, self._kwargs = args, kwargs
        self._channels_last = channels_last

    @property
    def bytes(self) -> int:
        """About the memory that an example needs: for the arguments, with gaps between rows, and for the results."""
        leaves = [leaf for leaf in _pytree.tree_leaves((self._args, self._kwargs)) if isinstance(leaf, torch.Tensor)]
        # results of 8-bit arguments have 16 bits
        return sum(leaf.nbytes + max(2, leaf.itemsize) * extent(leaf.shape, leaf.stride()) for leaf in leaves)

    def example(self, device: torch.device, filled: bool = True) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Random arguments of these shapes; zeros would run faster than real data. Global generators aren't used.

        Args:
            device: where they lie.
            filled: whether floating-point tensors need values.
        """
        generator = torch.Generator(device).manual_seed(0) if filled else None

        def make(meta: Any) -> Any:
            if isinstance(meta, (tuple, list)):
                return type(meta)(make(item) for item in meta)
            if not isinstance(meta, torch.Tensor):
                return meta
            tensor = torch.empty_strided(meta.shape, meta.stride(), dtype=meta.dtype, device=device)
            if self._channels_last and meta.dim() in INNERMOST:
                tensor = torch.empty(meta.shape, dtype=meta.dtype, device=device, memory_format=INNERMOST[meta.dim()])
            if not tensor.is_floating_point() and tensor.dtype != torch.int8:
                return tensor.zero_()  # they may be indices, and those have to be valid
            return tensor if generator is None else _random(tensor, generator)

        return tuple(make(arg) for arg in self._args), {name: make(arg) for name, arg in self._kwargs.items()}


def _random(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """``tensor`` filled with random numbers; if it has 8 bits, with such as quantised weights have."""
    if tensor.dtype == torch.int8:
        return tensor.random_(-127, 128, generator=generator)
    if tensor.itemsize > 1:
        return tensor.normal_(generator=generator)
    _fill(tensor, generator)
    return tensor


def _fill(tensor: torch.Tensor, generator: torch.Generator) -> None:
    """Fill a float8 tensor: PyTorch draws no numbers in float8, so a part at a time, to save memory, in float16."""
    along = next((dim for dim, size in enumerate(tensor.shape) if size > 1), None)
    if along is not None and tensor.numel() > _FILLED_AT_ONCE:
        for half in tensor.chunk(2, along):
            _fill(half, generator)
    else:
        tensor.copy_(
            torch.empty(tensor.shape, dtype=torch.float16, device=tensor.device).normal_(std=16.0, generator=generator)
        )


def extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    """The number of elements from a tensor's first to its last, with gaps."""
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) if all(shape) else 0
