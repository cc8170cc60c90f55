"""From a real call to an FX graph: signatures, weights by address, the recorder."""

from .autocast import autocast_off
from .call import Call
from .eligible import device_of, what_watches
from .errors import CaptureError, GradientsRecorded, OnlyThisCall
from .guards import Change, Guard, KeptByHost, Lead, code_of, covers, function_in, is_object, stands_for, taken_apart
from .input_writes import alone, check_writes
from .live import AnotherStructure, Surroundings, TakenIn
from .record import record
from .recorder import Recorder
from .regions import Region, apart
from .result import OutputSpec, tensors_of
from .signature import Signature, difference, other_setting, snapshot
from .thread_function import in_place_of, one_recording
from .thread_state import ThreadState, failed_here, raised_here, recorder_here, recording
from .trace import Trace, Untraceable
from .tracer import Tracer

__all__ = [
    "AnotherStructure",
    "Call",
    "CaptureError",
    "Change",
    "GradientsRecorded",
    "Guard",
    "KeptByHost",
    "Lead",
    "OnlyThisCall",
    "OutputSpec",
    "Recorder",
    "Region",
    "Signature",
    "Surroundings",
    "TakenIn",
    "ThreadState",
    "Trace",
    "Tracer",
    "Untraceable",
    "alone",
    "apart",
    "autocast_off",
    "check_writes",
    "code_of",
    "covers",
    "device_of",
    "difference",
    "failed_here",
    "function_in",
    "in_place_of",
    "is_object",
    "one_recording",
    "other_setting",
    "raised_here",
    "record",
    "recorder_here",
    "recording",
    "snapshot",
    "stands_for",
    "taken_apart",
    "tensors_of",
    "what_watches",
]
