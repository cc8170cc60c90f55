"""What devices exchange: tensors of which each has some rows, for tensors of all rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import torch


class Gather:
    """What a graph calls where each device sends its rows of tensors to all others.

    A graph is cut there (:mod:`..runtime.segments`), and again where they are there (:class:`Arrived`): what is between
    is computed while they are on their way.

    Args:
        site: which of the call's exchanges it is, the same on all devices.
        dims: along which dimension, for each tensor.
        counts: for each tensor, how many rows each device has.
    """

    live = True  #: neither computed beforehand, nor dropped, nor moved past another one

    def __init__(self, site: int, dims: Sequence[int], counts: Sequence[Sequence[int]]) -> None:
        self.site, self.dims, self.counts = site, tuple(dims), tuple(map(tuple, counts))
        self.__name__ = f"gather_{site}"

    def __call__(self, *_: torch.Tensor) -> NoReturn:
        raise NotImplementedError("rows are exchanged by all devices at once")

    def results(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Memory for what a device gets that has these, with the rows outermost: what another sends is one copy."""
        pairs = zip(tensors, self.dims, self.counts, strict=True)
        return tuple(_rows_outermost(tensor, dim, sum(counts)) for tensor, dim, counts in pairs)

    def places(self, results: Sequence[torch.Tensor], device: int, numbers: Sequence[int]) -> list[torch.Tensor]:
        """Where in these lie the rows that a device sends.

        Args:
            results: of the tensors with these numbers.
            device: the one that sends.
            numbers: which these are.
        """
        found = []
        for result, number in zip(results, numbers, strict=True):
            counts = self.counts[number]
            found.append(result.narrow(self.dims[number], sum(counts[:device]), counts[device]))
        return found


class Arrived:
    """What a graph calls where it wants what all devices have sent: a device's rows behind those of the one before it.

    Args:
        gather: where they were sent.
    """

    live = True

    def __init__(self, gather: Gather) -> None:
        self.gather, self.site = gather, gather.site
        self.__name__ = f"arrived_{gather.site}"

    def __call__(self, *_: object) -> NoReturn:
        raise NotImplementedError("rows are exchanged by all devices at once")


def _rows_outermost(tensor: torch.Tensor, dim: int, rows: int) -> torch.Tensor:
    others = [size for index, size in enumerate(tensor.shape) if index != dim]
    return tensor.new_empty([rows, *others]).movedim(0, dim)
