"""From a real call to an FX graph: signatures, weights by address, the recorder."""

from .autocast import autocast_off
from .called import stands_for
from .eligible import device_of, what_watches
from .errors import CaptureError
from .guard import StructureGuard
from .recorder import Recorder
from .signature import Signature, difference, snapshot
from .thread_state import ThreadState, recording
from .trace import OutputSpec, Trace, Untraceable, record
from .tracer import Guard, Tracer
from .weights import WeightRef, WeightSource

__all__ = [
    "CaptureError",
    "Guard",
    "OutputSpec",
    "Recorder",
    "Signature",
    "StructureGuard",
    "ThreadState",
    "Trace",
    "Tracer",
    "Untraceable",
    "WeightRef",
    "WeightSource",
    "autocast_off",
    "device_of",
    "difference",
    "record",
    "recording",
    "snapshot",
    "stands_for",
    "what_watches",
]
