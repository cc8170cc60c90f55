"""Memory for the values that pass between the stretches of one device's program, reused after a value's last reader."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..capture.live import Form
from ..runtime.job import extent
from ..runtime.segments import Body, Stretch
from .exchanges import Exchange, Room

_FOREVER = 1 << 62
_ALIGNED_BYTES = 512


class SharedMemory:
    """Gives each value that passes between parts its memory. It is asked in the order of the parts.

    Args:
        body: the program's.
        exchanges: its exchanges.

    Attributes:
        bytes: the size of all memory.
    """

    def __init__(self, body: Body, exchanges: Sequence[Exchange]) -> None:
        self._last: dict[int, int] = {}  # the last part that reads a value
        for index, part in enumerate(body.parts):
            self._last.update(dict.fromkeys(part.reads if isinstance(part, Stretch) else part.handed, index))
        for exchange in exchanges:  # what is sent has to stay until all devices have it
            for place in exchange.sent:
                self._last[place] = max(self._last[place], exchange.ends)
        self._last.update(dict.fromkeys(body.outputs, _FOREVER))
        self._free: dict[int, list[torch.Tensor]] = {}  # by size
        self._used: dict[int, list[torch.Tensor]] = {}  # by the last part that reads them
        self._exchanges: dict[int, Room] = {}
        self._passed = -1
        self.bytes = 0

    def take(self, place: int, like: torch.Tensor) -> torch.Tensor:
        """Memory for a value."""
        return self._take(Form.of(like), self._last[place])

    def of_exchange(self, exchange: Exchange) -> Room:
        """Memory for the results of an exchange, the same at each call. A device may compute what it sends into it."""
        if exchange.begins not in self._exchanges:
            last = max(self._last.get(place, exchange.ends) for place in (*exchange.results, *exchange.sent))
            self._exchanges[exchange.begins] = exchange.room([self._take(form, last) for form in exchange.forms])
        return self._exchanges[exchange.begins]

    def last(self, place: int) -> int:
        """The last part that reads a value."""
        return self._last[place]

    def passed(self, index: int) -> bool:
        """Note that a part is done, so that values without later readers may be overwritten; whether it is news."""
        if index <= self._passed:
            return False
        self._passed = index
        for piece in self._used.pop(index, ()):
            self._free.setdefault(piece.nbytes, []).append(piece)
        return True

    def _take(self, form: Form, last: int) -> torch.Tensor:
        with torch.inference_mode(False):
            size = -(-extent(form.shape, form.stride) * form.dtype.itemsize // _ALIGNED_BYTES) * _ALIGNED_BYTES
            if free := self._free.get(size):
                piece = free.pop()
            else:
                piece = torch.empty(size, dtype=torch.uint8, device=form.device)
                self.bytes += size
            self._used.setdefault(last, []).append(piece)
            return piece.view(form.dtype).as_strided(form.shape, form.stride)
