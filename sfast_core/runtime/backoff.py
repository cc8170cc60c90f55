"""When to try again what failed for a passing reason: at once at first, then after ever more calls."""

from __future__ import annotations

from collections.abc import Hashable

_LONGEST = 128


class Backoff:
    """Counts failures by key. After the n-th in a row the next 2^n - 2 calls are not to be tried, at most 128."""

    def __init__(self) -> None:
        self._tries: dict[Hashable, int] = {}
        self._skips: dict[Hashable, int] = {}
        self._reasons: dict[Hashable, str] = {}

    def failed(self, key: Hashable, reason: str) -> None:
        """Note a failure."""
        self._tries[key] = tries = self._tries.get(key, 0) + 1
        self._skips[key] = min(_LONGEST, 2**tries - 2)
        self._reasons[key] = reason

    def succeeded(self, key: Hashable) -> None:
        """Forget the failures."""
        for table in (self._tries, self._skips, self._reasons):
            table.pop(key, None)

    def reason(self, key: Hashable) -> str | None:
        """The last failure's reason where this call is not to be tried, and counts it; None where it is."""
        if not self._skips.get(key):
            return None
        self._skips[key] -= 1
        return self._reasons[key]

    def clear(self) -> None:
        """Forget everything."""
        for table in (self._tries, self._skips, self._reasons):
            table.clear()
