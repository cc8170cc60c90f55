"""What a recorded call read besides its arguments, and what it left behind: found from the code that ran."""

from .arguments import has_read
from .by_others import Change
from .bytecode import reads_of
from .effects import EffectsFinder, NotRepeated
from .extent import covers
from .frames import NotWatched, Pausing, Unwatched, watched
from .given import PartialInPlace, stands_for
from .guard import Guard
from .hooks import hooked_below
from .kinds import is_object
from .leads import Lead, Leads, followed
from .left import Effects, KeptByHost
from .made import Made, taken_apart
from .read_set import ReadSet
from .readers import CALLS_A_MODULE, Reader, code_of, function_in, reader_at
from .rests_on import RestsOn
from .returning import KeptByOthers, KeptState

__all__ = [
    "CALLS_A_MODULE",
    "Change",
    "Effects",
    "EffectsFinder",
    "Guard",
    "KeptByHost",
    "KeptByOthers",
    "KeptState",
    "Lead",
    "Leads",
    "Made",
    "NotRepeated",
    "NotWatched",
    "PartialInPlace",
    "Pausing",
    "ReadSet",
    "Reader",
    "RestsOn",
    "Unwatched",
    "code_of",
    "covers",
    "followed",
    "function_in",
    "has_read",
    "hooked_below",
    "is_object",
    "reads_of",
    "reader_at",
    "stands_for",
    "taken_apart",
    "watched",
]
