"""The sizes that a warm-up takes: text, as a person writes it."""

from __future__ import annotations

import re
from typing import NamedTuple

EXAMPLE = "1024x1024, 832x1216 x2"
_SIZE = re.compile(r"(\d+) ?[x×*] ?(\d+)(?: ?[x×*] ?(\d+))?", re.IGNORECASE)
_MULTIPLE, _LEAST, _MOST, _BATCH = 8, 16, 16384, 4096


class Size(NamedTuple):
    """Pictures in pixels, and how many at once."""

    width: int
    height: int
    batch: int = 1

    def __str__(self) -> str:
        return f"{self.width}x{self.height}" + (f" x{self.batch}" if self.batch > 1 else "")


def parse_sizes(text: str) -> list[Size]:
    """The sizes in ``text``, each once: ``WIDTHxHEIGHT``, with `` xBATCH`` behind it where it is more than one picture.

    They stand in lines or behind commas; what follows a ``#`` is left out.

    Raises:
        ValueError: a size can't be read or there is none; the message names the line, what came and what is needed.
    """
    found, wrong = read_sizes(text)
    if wrong:
        raise ValueError(wrong[0])
    return found


def read_sizes(text: str) -> tuple[list[Size], list[str]]:
    """The sizes in ``text`` as :func:`parse_sizes` reads them, and what is wrong with those that can't be read, a
    message each.
    """
    found, wrong = [], []
    for number, line in enumerate(text.splitlines(), 1):
        for part in line.partition("#")[0].replace(";", ",").split(","):
            if words := " ".join(part.split()):
                try:
                    found.append(_size(words, number))
                except ValueError as error:
                    wrong.append(str(error))
    if not found and not wrong:
        wrong.append(f"sizes: there is none, needs one or more such as {EXAMPLE}")
    return list(dict.fromkeys(found)), wrong


def _size(words: str, number: int) -> Size:
    where = f"sizes, line {number}: got {words!r}"
    match = _SIZE.fullmatch(words)
    if match is None:
        raise ValueError(f"{where}, needs WIDTHxHEIGHT or WIDTHxHEIGHT xBATCH, such as {EXAMPLE}")
    size = Size(int(match[1]), int(match[2]), int(match[3] or 1))
    for name, pixels in (("width", size.width), ("height", size.height)):
        if pixels % _MULTIPLE or not _LEAST <= pixels <= _MOST:
            raise ValueError(f"{where}, needs a {name} from {_LEAST} to {_MOST} in steps of {_MULTIPLE}")
    if not 1 <= size.batch <= _BATCH:
        raise ValueError(f"{where}, needs a batch from 1 to {_BATCH}")
    return size
