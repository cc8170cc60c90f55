"""Memory for what stretches of one device's program leave to one another, used again behind the last that reads it."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..capture.live import Form
from ..runtime.segments import Body, Live, Stretch

_FOREVER = 1 << 62


class SharedMemory:
    """Where each value lies that passes from one part to another. Pieces are asked for in the order of the parts.

    Args:
        body: the program's.
    """

    def __init__(self, body: Body) -> None:
        self._parts = body.parts
        self._last: dict[int, int] = {}  # the last part that reads a value
        for index, part in enumerate(body.parts):
            for place in part.reads if isinstance(part, Stretch) else part.handed:
                self._last[place] = index
        self._last.update(dict.fromkeys(body.outputs, _FOREVER))
        self._free: dict[int, list[torch.Tensor]] = {}  # by size
        self._used: dict[int, list[torch.Tensor]] = {}  # by the last part that reads them
        self._exchanges: dict[int, list[torch.Tensor]] = {}
        self._passed = -1
        self.bytes = 0

    def take(self, place: int, like: torch.Tensor) -> torch.Tensor:
        """Memory for a value."""
        return self._take(Form.of(like), self._last[place])

    def of_exchange(self, index: int, live: Live) -> list[torch.Tensor]:
        """Memory for what an exchange gives: the same whenever it is asked for. What a device sends may lie in it."""
        if index not in self._exchanges:
            last = max(self._last.get(place, index) for place in (*(place for place, _ in live.results), *live.handed))
            self._exchanges[index] = [self._take(form, last) for form in live.forms]
        return self._exchanges[index]

    def exchanges_behind(self, index: int) -> Iterator[tuple[int, Live]]:
        """The next exchange behind a part, with its own index, if there is one."""
        for at, part in enumerate(self._parts[index + 1 :], index + 1):
            if isinstance(part, Live):
                yield at, part
                return

    def passed(self, index: int) -> None:
        """A part is done, for the first time: what nobody reads behind it may be used again."""
        if index > self._passed:
            self._passed = index
            for piece in self._used.pop(index, ()):
                self._free.setdefault(piece.nbytes, []).append(piece)

    def _take(self, form: Form, last: int) -> torch.Tensor:
        with torch.inference_mode(False):
            size = -(-_extent(form) * form.dtype.itemsize // 512) * 512
            if free := self._free.get(size):
                piece = free.pop()
            else:
                piece = torch.empty(size, dtype=torch.uint8, device=form.device)
                self.bytes += size
            self._used.setdefault(last, []).append(piece)
            return piece.view(form.dtype).as_strided(form.shape, form.stride)


def _extent(form: Form) -> int:
    """How many elements lie from the first to the last."""
    return (
        1 + sum((size - 1) * step for size, step in zip(form.shape, form.stride, strict=True)) if all(form.shape) else 0
    )
