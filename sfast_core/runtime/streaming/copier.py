"""Copies weights into their slots while kernels run: on a stream of their own, where the device has streams.

Everything is ordered by events, so that the same calls, while a graph is captured, make copy nodes beside kernels.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from ...native.driver import can_copy, copy_async


class Copier:
    """Copies the weights of one run into their slots: here at once, in order, for a device without streams.

    A *mark* is a point in the order of work that others can wait for.
    """

    def begin(self) -> None:
        """To be called first: copies come after what has been computed so far."""

    def copy(self, parts: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
        """Copy each source, which is dense, into the part of a slot with its shape and dtype."""
        for part, source in zip(parts, sources, strict=True):
            part.copy_(source)

    def copied(self) -> Any:
        """A mark after the copies so far."""

    def computed(self) -> Any:
        """A mark after what has been computed so far."""

    def wait_for_copies(self, mark: Any) -> None:
        """Have what is computed next wait for ``mark``."""

    def wait_for_results(self, mark: Any) -> None:
        """Have the next copies wait for ``mark``."""

    def end(self) -> None:
        """Have what is computed next wait for all copies."""


class CudaCopier(Copier):
    """Copies on a side stream, by the driver's own call.

    PyTorch's ``copy_`` would record an event for its allocator of pinned memory at each copy, which isn't allowed in a
    capture in every version, and it pins memory that it doesn't know as its own.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._side = _side_stream(device)
        self._main = torch.cuda.current_stream(device)

    def begin(self) -> None:
        self._main = torch.cuda.current_stream(self._device)
        self._side.wait_stream(self._main)

    def copy(self, parts: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
        for part, source in zip(parts, sources, strict=True):
            if source.nbytes:
                copy_async(part.data_ptr(), source.data_ptr(), source.nbytes, self._side.cuda_stream)

    def copied(self) -> torch.cuda.Event:
        return self._side.record_event()

    def computed(self) -> torch.cuda.Event:
        return self._main.record_event()

    def wait_for_copies(self, mark: torch.cuda.Event) -> None:
        self._main.wait_event(mark)

    def wait_for_results(self, mark: torch.cuda.Event) -> None:
        self._side.wait_event(mark)

    def end(self) -> None:
        self._main.wait_stream(self._side)


@functools.cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """One side stream for all programs of a device, which run one at a time. It has high priority, since PyTorch takes
    such streams from another pool than those that kernels run on.
    """
    return torch.cuda.Stream(device, priority=-1)


def copier_for(device: torch.device) -> Copier:
    """A copier to this device."""
    return CudaCopier(device) if device.type == "cuda" and can_copy() else Copier()
