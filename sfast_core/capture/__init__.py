"""From a real call to an FX graph: signatures, weights by address, the recorder."""

from .autocast import autocast_off
from .call import Call
from .eligible import device_of, what_watches
from .errors import CaptureError, GradientsRecorded, OnlyThisCall
from .guards import Guard, code_of, is_object, stands_for
from .live import AnotherStructure, Surroundings, TakenIn
from .recorder import Recorder
from .signature import Signature, difference, other_setting, snapshot
from .thread_function import in_place_of, one_recording
from .thread_state import ThreadState, recording
from .trace import OutputSpec, Trace, Untraceable, record
from .tracer import Tracer

__all__ = [
    "AnotherStructure",
    "Call",
    "CaptureError",
    "Guard",
    "GradientsRecorded",
    "OnlyThisCall",
    "OutputSpec",
    "Recorder",
    "Signature",
    "Surroundings",
    "TakenIn",
    "ThreadState",
    "Trace",
    "Tracer",
    "Untraceable",
    "autocast_off",
    "code_of",
    "device_of",
    "difference",
    "other_setting",
    "in_place_of",
    "one_recording",
    "is_object",
    "record",
    "recording",
    "snapshot",
    "stands_for",
    "what_watches",
]
