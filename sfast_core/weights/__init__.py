"""A module's weights: which they are, and how each is laid out for a program and given back."""

from .arriving import Arriving
from .bound import Bound
from .channels_last import CHANNELS_LAST, ChannelsLast
from .errors import WeightsChanged, WeightsElsewhere
from .kind import WeightKinds
from .layout import PLAIN, Layout, Layouts, Weight
from .layouts import LAYOUTS
from .offload import Arrival, Held, Offload
from .packed import PACKED, Packed
from .plain import Plain
from .ref import WeightRef
from .table import WeightTable

__all__ = [
    "CHANNELS_LAST",
    "LAYOUTS",
    "PACKED",
    "PLAIN",
    "Arrival",
    "Arriving",
    "Bound",
    "ChannelsLast",
    "Held",
    "Layout",
    "Layouts",
    "Offload",
    "Packed",
    "Plain",
    "Weight",
    "WeightKinds",
    "WeightRef",
    "WeightTable",
    "WeightsChanged",
    "WeightsElsewhere",
]
