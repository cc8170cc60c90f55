"""What a recorded call read besides its arguments, and what it left behind: found from the code that ran."""

from .effects import Effects, NotRepeated, effects_of
from .frames import NotWatched, Pausing, Unwatched, watched
from .given import stands_for
from .guard import Guard
from .read_set import CodeCache, ReadSet

__all__ = [
    "CodeCache",
    "Effects",
    "Guard",
    "NotRepeated",
    "NotWatched",
    "Pausing",
    "ReadSet",
    "Unwatched",
    "effects_of",
    "stands_for",
    "watched",
]
