"""Which layouts there are: a new one is a file and a line here."""

from __future__ import annotations

from .channels_last import CHANNELS_LAST, ChannelsLast
from .eight_bits import EIGHT_BITS
from .layout import PLAIN, Layout, Layouts
from .packed import PACKED, Packed
from .plain import Plain

LAYOUTS: dict[str, type[Layout]] = {PLAIN: Plain, PACKED: Packed, CHANNELS_LAST: ChannelsLast, **EIGHT_BITS}


def layouts() -> Layouts:
    """One of each, for a store."""
    return {name: make() for name, make in LAYOUTS.items()}
