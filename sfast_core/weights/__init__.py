"""A module's weights: where they are kept, and how they are laid out for a program and given back."""

from .bound import Bound
from .channels_last import CHANNELS_LAST, ChannelsLast
from .errors import WeightsChanged, WeightsElsewhere
from .layout import PLAIN, Layout, Layouts, Weight
from .layouts import LAYOUTS
from .packed import PACKED, Packed
from .plain import Plain
from .ref import WeightRef
from .store import Store, WeightStore
from .table import WeightTable

__all__ = [
    "CHANNELS_LAST",
    "LAYOUTS",
    "PACKED",
    "PLAIN",
    "Bound",
    "ChannelsLast",
    "Layout",
    "Layouts",
    "Packed",
    "Plain",
    "Store",
    "Weight",
    "WeightRef",
    "WeightStore",
    "WeightTable",
    "WeightsChanged",
    "WeightsElsewhere",
]
