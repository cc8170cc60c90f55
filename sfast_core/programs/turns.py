"""Which of a signature's programs served which call of a sampling: code of others that goes one of several ways by the
step goes them again in the next one.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Entry = TypeVar("Entry")
_MOST = 1024  # calls of one sampling, and signatures


@dataclass
class _Sampling(Generic[Entry]):
    """``now``: what served this sampling's calls, as far as that is known; ``before``: likewise the one before.

    ``failed``: by the calls' places, what didn't do for them, in this sampling or earlier ones.
    """

    number: int
    now: list[Entry | None] = field(default_factory=list)
    before: list[Entry | None] = field(default_factory=list)
    failed: dict[int, list[Entry]] = field(default_factory=dict)


class Turns(Generic[Entry]):
    """Those of one module on one device."""

    def __init__(self) -> None:
        self._of: dict[Hashable, _Sampling[Entry]] = {}

    def begins(self, key: Hashable, sampling: int) -> bool:
        """Whether no call of this signature has come yet in this sampling."""
        return (known := self._of.get(key)) is not None and known.number != sampling

    def expected(self, key: Hashable, sampling: int) -> tuple[Entry | None, list[Entry]]:
        """A call of this signature comes: what served the one at its place in the last sampling, or None; and what
        didn't do there.

        Args:
            key: of the signature.
            sampling: the number of this one; 0 where nobody counts them.
        """
        if not sampling:
            return None, []
        if len(self._of) >= _MOST and key not in self._of:
            self._of.clear()
        known = self._of.setdefault(key, _Sampling(sampling))
        if known.number != sampling:
            known.number, known.before, known.now = sampling, known.now, []
        place = len(known.now)
        if place < _MOST:
            known.now.append(None)
        return known.before[place] if place < len(known.before) else None, known.failed.get(place, [])

    def failed(self, key: Hashable, entry: Entry) -> None:
        """This entry doesn't do for the call."""
        if (known := self._of.get(key)) is not None and known.now:
            known.failed.setdefault(len(known.now) - 1, []).append(entry)

    def otherwise(self, key: Hashable) -> None:
        """What is read isn't what it was in the last sampling: this one needn't go its ways."""
        if (known := self._of.get(key)) is not None:
            known.before = []

    def served(self, key: Hashable, entry: Entry) -> None:
        """The call has its result from this entry. So would have those right before it that nothing served."""
        known = self._of.get(key)
        now = [] if known is None else known.now
        if known is not None:
            known.failed.pop(len(now) - 1, None)
        for place in range(len(now) - 1, -1, -1):
            if now[place] is not None and place < len(now) - 1:
                break
            now[place] = entry

    def forget(self, entry: Entry) -> None:
        """It is no more."""
        for known in self._of.values():
            for failed in known.failed.values():
                failed[:] = [each for each in failed if each is not entry]
            for calls in (known.now, known.before):
                calls[:] = [None if each is entry else each for each in calls]
