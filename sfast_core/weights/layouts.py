"""All layouts. A new one is a file and a line here (docs/adding-a-layout.md)."""

from __future__ import annotations

from .channels_last import CHANNELS_LAST, ChannelsLast
from .eight_bits import EIGHT_BITS
from .layout import PLAIN, Layout, Layouts
from .packed import PACKED, Packed
from .plain import Plain

LAYOUTS: dict[str, type[Layout]] = {PLAIN: Plain, PACKED: Packed, CHANNELS_LAST: ChannelsLast, **EIGHT_BITS}


def layouts() -> Layouts:
    """An instance of each layout, for a store."""
    return {name: make() for name, make in LAYOUTS.items()}
