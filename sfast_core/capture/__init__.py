"""From a real call to an FX graph: signatures, weights by address, the recorder."""

from .autocast import autocast_off
from .called import stands_for
from .eligible import device_of
from .errors import CaptureError, GradientsRecorded
from .guard import StructureGuard
from .recorder import Recorder
from .signature import Signature, difference, snapshot
from .trace import OutputSpec, Trace, Untraceable, record, recording
from .tracer import Tracer
from .weights import WeightRef, WeightSource

__all__ = [
    "CaptureError",
    "GradientsRecorded",
    "OutputSpec",
    "Recorder",
    "Signature",
    "StructureGuard",
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
]
