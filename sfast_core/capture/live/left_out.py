"""Live code that keeps a state and, in a recorded call, left out a function of the model's that it was handed.

A block's cache skips the block at some steps. Recorded at such a step, the block is no part of the program, and each
call that runs it has to be finished by the original forward. So such a recording leaves no trace, and a later one, in
which it runs the block, does: what was run once may be left out at any time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

#: Recordings in a row, after which it is taken for code that never calls what it is handed.
_ENOUGH = 3


class LeftOut:
    """Counts recordings in which live code left out what it was handed, by its key. Lasts from one to the next."""

    def __init__(self) -> None:
        self._in_a_row: Counter[Hashable] = Counter()

    def may_come(self, key: Hashable, left_out: bool) -> bool:
        """Note what it did in this recording. Whether it may yet call what it has left out."""
        if not left_out:
            self._in_a_row.pop(key, None)
            return False
        self._in_a_row[key] += 1
        return self._in_a_row[key] < _ENOUGH

    def clear(self) -> None:
        """Forget all of it."""
        self._in_a_row.clear()
