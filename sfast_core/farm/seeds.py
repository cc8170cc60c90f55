"""Seeds on the command line: ``0-99``, ``7``, ``1,5,10-12``."""

from __future__ import annotations

from .errors import FarmError

LARGEST = 2**64 - 1  #: what ComfyUI's samplers take
MOST = 100_000  #: in one submission


def parse(text: str) -> list[int]:
    """The seeds that ``text`` names, in its order, each once.

    Raises:
        FarmError: it names none, one that no sampler takes, or more than ``MOST``.
    """
    found: dict[int, None] = {}
    for part in text.split(","):
        first, dash, last = (piece.strip() for piece in part.partition("-"))
        ends = (first, last) if dash else (first, first)
        if not all(end.isascii() and end.isdigit() for end in ends):
            raise FarmError(
                f"--seeds {text!r}: {part.strip()!r} is neither a number nor a range; write 7, 0-99 or 1,5,10-12"
            )
        low, high = map(int, ends)
        if high < low or high > LARGEST:
            raise FarmError(f"--seeds {text!r}: {part.strip()!r} has to go upwards, and to {LARGEST} at most")
        if high - low >= MOST or len(found) + high - low >= MOST:
            raise FarmError(f"--seeds {text!r}: more than {MOST} seeds; submit them in parts")
        found.update(dict.fromkeys(range(low, high + 1)))
    return list(found)
