"""What a recorded call read besides its arguments, and what it left behind: found from the code that ran."""

from .arguments import has_read
from .code_cache import CodeCache, known_codes
from .effects import NotRepeated, effects_of
from .extent import covers
from .frames import NotWatched, Pausing, Unwatched, watched
from .given import PartialInPlace, stands_for
from .guard import Guard
from .hooks import hooked_below
from .kinds import is_object
from .left import Effects, KeptByHost
from .read_set import ReadSet
from .readers import CALLS_A_MODULE, Reader, code_of, reader_at

__all__ = [
    "CALLS_A_MODULE",
    "CodeCache",
    "Effects",
    "Guard",
    "KeptByHost",
    "NotRepeated",
    "NotWatched",
    "PartialInPlace",
    "Pausing",
    "ReadSet",
    "Reader",
    "Unwatched",
    "code_of",
    "covers",
    "effects_of",
    "hooked_below",
    "known_codes",
    "has_read",
    "is_object",
    "reader_at",
    "stands_for",
    "watched",
]
