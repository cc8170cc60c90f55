"""Copies into slots, beside what is computed: on a stream of their own where the device has streams.

Everything is ordered by events, so the same calls make a CUDA graph of copies beside kernels while one is captured.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from ...native.driver import can_copy, copy_async


class Copier(Protocol):
    """How weights get into their slots in one run.

    A mark is a point in the order of work; who waits for one goes on behind it.
    """

    def begin(self) -> None:
        """Copies may begin behind what has been computed so far."""

    def copy(self, parts: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
        """Copy each source, dense and as it lies, into the part of its kind."""

    def copied(self) -> Any:
        """A mark behind the copies so far."""

    def computed(self) -> Any:
        """A mark behind what has been computed so far."""

    def wait_for_copies(self, mark: Any) -> None:
        """What is computed next comes behind ``mark``."""

    def wait_for_results(self, mark: Any) -> None:
        """Copies from now on come behind ``mark``."""

    def end(self) -> None:
        """What is computed next comes behind all copies."""


class PlainCopier:
    """Copies at once, in order: on a device without streams."""

    def begin(self) -> None: ...

    def copy(self, parts: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
        for part, source in zip(parts, sources, strict=True):
            part.copy_(source)

    def copied(self) -> None: ...

    def computed(self) -> None: ...

    def wait_for_copies(self, mark: Any) -> None: ...

    def wait_for_results(self, mark: Any) -> None: ...

    def end(self) -> None: ...


class CudaCopier:
    """Copies on a side stream by the driver's own call.

    PyTorch's ``copy_`` would tell its allocator of pinned memory of each copy by an event, which a capture doesn't bear
    in every version, and pins what it doesn't know as its own.
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
    """One for all of a device's programs, which run one at a time.

    Of high priority: PyTorch hands such streams out apart from those that kernels run on.
    """
    return torch.cuda.Stream(device, priority=-1)


def copier_for(device: torch.device) -> Copier:
    """What copies to this device."""
    return CudaCopier(device) if device.type == "cuda" and can_copy() else PlainCopier()
