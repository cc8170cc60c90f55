"""An exchange between devices: each gives its rows of tensors, and gets tensors with all rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import torch


class Gather:
    """The beginning of an exchange, as a function that a graph calls: each device sends its rows to all others.

    A graph is cut there (:mod:`..runtime.segments`), and again where the rows have to be there (:class:`Arrived`). What
    stands between is computed while they are on their way.

    Args:
        site: the number of the exchange within the call, the same on all devices.
        dims: for each tensor, the dimension of its rows.
        counts: for each tensor, the number of rows on each device.
    """

    live = True  #: so that passes neither compute it beforehand, nor drop it, nor move it past another

    def __init__(self, site: int, dims: Sequence[int], counts: Sequence[Sequence[int]]) -> None:
        self.site, self.dims, self.counts = site, tuple(dims), tuple(map(tuple, counts))
        self.__name__ = f"gather_{site}"

    def __call__(self, *_: torch.Tensor) -> NoReturn:
        raise NotImplementedError("rows are exchanged by all devices at once")

    def results(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Memory for a device's results, its rows outermost, so that what it sends is one copy."""
        pairs = zip(tensors, self.dims, self.counts, strict=True)
        return tuple(_rows_outermost(tensor, dim, sum(counts)) for tensor, dim, counts in pairs)

    def places(self, results: Sequence[torch.Tensor], device: int, numbers: Sequence[int]) -> list[torch.Tensor]:
        """The parts of the results that the rows of one device go to.

        Args:
            results: of some of the exchange's tensors.
            device: the one that sends.
            numbers: the indices of these tensors.
        """
        found = []
        for result, number in zip(results, numbers, strict=True):
            counts = self.counts[number]
            found.append(result.narrow(self.dims[number], sum(counts[:device]), counts[device]))
        return found


class Arrived:
    """The end of an exchange, as a function that a graph calls: it gives all rows, in the order of devices.

    Args:
        gather: the beginning.
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
