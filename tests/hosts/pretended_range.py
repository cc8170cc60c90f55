"""Stand-ins for the range in which dynamic VRAM keeps a model's weights, and for the host's layer that asks for them."""

from __future__ import annotations

import ctypes
from typing import Any

MB = 1 << 20

#: In a file that has ``cast_bias_weight`` and ``uncast_bias_weight``.
LINEAR = """
class Linear(torch.nn.Linear):
    weight_function = bias_function = ()

    def forward(self, x):
        weight, bias, there = cast_bias_weight(self, x, offloadable=True)
        x = torch.nn.functional.linear(x, weight, bias)
        uncast_bias_weight(self, weight, bias, there)
        return x
"""


class Range:
    """Modules of 40 MB each, behind one another: pages of 32 MB that are there or not, and room for ``free`` more on the
    device.

    As comfy-aimdo's: a page is pinned as often as it was asked for. Looking for room lowers the watermark from the end
    on, also past pages that are pinned; those go when they are let go of, and above it nothing is to be had.
    """

    base_addr = 1 << 32

    def __init__(self, modules: int = 3) -> None:
        self.offset = 40 * MB * modules
        self.count = -(-self.offset // (32 * MB))
        self.pages, self.serials, self.pins = [True] * self.count, [1] * self.count, [0] * self.count
        self.watermark, self.free = self.count, 0

    @property
    def held(self) -> set[int]:
        return {page for page, pins in enumerate(self.pins) if pins}

    def of(self, address: int, size: int) -> range:
        start = address - self.base_addr
        return range(start // (32 * MB), (start + size - 1) // (32 * MB) + 1)

    def get_residency(self) -> list[int]:
        return [int(page) for page in self.pages] + [0] * 36

    def get_watermark(self) -> int:
        return self.watermark

    def set_watermark(self, size: int) -> None:
        while self.watermark > -(-size // (32 * MB)):
            self._take(self.watermark - 1)
            self.watermark -= 1
        self.watermark = -(-size // (32 * MB))

    def prioritize(self) -> None:
        self.watermark = self.count

    def fault(self, address: int, size: int) -> Any:
        pages = self.of(address, size)
        if pages.stop > self.watermark:
            return None
        missing = [page for page in pages if not self.pages[page]]
        if len(missing) > self.free:
            while self.watermark and len(missing) > self.free:
                self._take(self.watermark - 1)
                self.watermark -= 1
            return None
        self.free -= len(missing)
        for page in missing:
            self.pages[page], self.serials[page] = True, self.serials[page] + 1
        for page in pages:
            self.pins[page] += 1
        return (ctypes.c_uint32 * (size // (32 * MB) + 2))(*(self.serials[page] for page in pages))

    def unpin(self, address: int, size: int) -> None:
        for page in self.of(address, size):
            assert self.pins[page], "nobody holds it"
            self.pins[page] -= 1
            if page >= self.watermark:
                self._take(page)

    def free_memory(self, size: int) -> None:
        """Also what an allocation does that finds too little."""
        wanted = -(-size // (32 * MB))
        while wanted > 0 and self.watermark:
            wanted -= self._take(self.watermark - 1)
            self.watermark -= 1

    def _take(self, page: int) -> int:
        if not self.pages[page] or self.pins[page]:
            return 0
        self.pages[page] = False
        self.free += 1
        self.taken(page)
        return 1

    def taken(self, page: int) -> None:
        """The memory of a page is another's from now on."""
