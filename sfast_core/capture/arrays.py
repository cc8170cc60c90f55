"""Tensors that a forward makes of NumPy arrays: constants, since what an array is computed of in a recorded call is
compared at each call.

``torch.from_numpy`` is no function that PyTorch lets modes see. So it is replaced while a call is recorded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .bookkeeping import Bookkeeping
from .errors import CaptureError
from .guards import stands_for
from .nodes import call_function
from .switch import Switch

Make = Callable[[Any], torch.Tensor]
Seen = Callable[[Make, Any], torch.Tensor]


class Kept:
    """What a graph calls for such a tensor."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self.__name__ = self.__qualname__ = "kept_array"

    def __call__(self) -> torch.Tensor:
        """The tensor, for others to read."""
        return self._tensor


class Arrays(Bookkeeping):
    """Bookkeeping of tensors that lie in arrays' memory."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._arrays: list[tuple[torch.Tensor, torch.Tensor]] = []

    def _bind_array(self, tensor: torch.Tensor) -> None:
        """Note what is in a tensor that was made of an array. A write to it would be one to the array."""
        with torch._C.DisableTorchFunction():
            kept = tensor.clone()
        self._arrays.append((tensor, kept))
        self._bind(tensor, call_function(self.graph, Kept(kept), ()))
        self._foreign.add(self._storage(tensor))

    def _check_arrays(self) -> None:
        """The call is over.

        Raises:
            CaptureError: an array holds something else than when a tensor was made of it, which the graph may or may
            not have read.
        """
        for tensor, kept in self._arrays:
            if not bool(torch.isclose(tensor, kept, rtol=0, atol=0, equal_nan=True).all()):
                raise CaptureError("the call changes a NumPy array that it has made a tensor of")
        self._arrays.clear()


@contextmanager
def arrays_seen(seen: Seen) -> Iterator[None]:
    """Let ``seen`` be called where this thread calls ``torch.from_numpy``: it is given that function, and the array."""
    with _switch().on(seen):
        yield


@functools.cache
def _switch() -> Switch[Seen]:
    return Switch(_replace)


def _replace() -> Callable[[], None]:
    """Put ours in the function's place, through which other threads pass to it."""
    original: Make = torch.from_numpy

    def from_numpy(array: Any) -> torch.Tensor:
        seen = _switch().own()
        return original(array) if seen is None else seen(original, array)

    stands_for(from_numpy, original)
    torch.from_numpy = from_numpy
    return functools.partial(setattr, torch, "from_numpy", original)
