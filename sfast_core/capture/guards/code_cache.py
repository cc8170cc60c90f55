"""What is known of code, for as long as it is there."""

from __future__ import annotations

import functools
from types import CodeType

from .bytecode import reads_of
from .chains import CodeReads


class CodeCache:
    """What code objects read, by the object: code compares by value, which takes long."""

    def __init__(self) -> None:
        self._reads: dict[int, tuple[CodeType, CodeReads]] = {}

    def of(self, code: CodeType) -> CodeReads:
        """As :func:`reads_of`."""
        entry = self._reads.get(id(code))
        if entry is None or entry[0] is not code:
            entry = self._reads[id(code)] = code, reads_of(code)
        return entry[1]


@functools.cache
def known_codes() -> CodeCache:
    """What is known of code in this process: models share it, and each function's takes a millisecond to find out."""
    return CodeCache()
