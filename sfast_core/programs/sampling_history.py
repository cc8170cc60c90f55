"""Remembers which of a signature's programs served which call of the last sampling.

Other people's code may take one of several ways by the step (Kohya's Deep Shrink in the first steps), and then takes
them at the same steps of the next sampling.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Entry = TypeVar("Entry")
_MOST = 1024  # calls of one sampling that are remembered, and signatures


@dataclass
class _Sampling(Generic[Entry]):
    """What served the calls of one signature.

    Attributes:
        number: of the present sampling.
        now: what served its calls so far, in order; None where that isn't known.
        before: the same of the sampling before.
        failed: which entries didn't fit the call at this place, in this sampling or earlier ones.
    """

    number: int
    now: list[Entry | None] = field(default_factory=list)
    before: list[Entry | None] = field(default_factory=list)
    failed: dict[int, list[Entry]] = field(default_factory=dict)


class SamplingHistory(Generic[Entry]):
    """The memory of one module on one device."""

    def __init__(self) -> None:
        self._of: dict[Hashable, _Sampling[Entry]] = {}  # by signature

    def begins(self, key: Hashable, sampling: int) -> bool:
        """Whether this is the signature's first call in this sampling, and there was one before."""
        return (known := self._of.get(key)) is not None and known.number != sampling

    def expected(self, key: Hashable, sampling: int) -> tuple[Entry | None, list[Entry]]:
        """The entry that served the call at this place of the last sampling, or None, and those that didn't fit there.

        Args:
            key: of the signature.
            sampling: the number of the present sampling; 0 where the host doesn't count them.
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
        """To be told that this entry didn't fit the present call."""
        if (known := self._of.get(key)) is not None and known.now:
            known.failed.setdefault(len(known.now) - 1, []).append(entry)

    def otherwise(self, key: Hashable) -> None:
        """To be told that a setting has changed since the last sampling: what served then is no hint any more."""
        if (known := self._of.get(key)) is not None:
            known.before = []

    def served(self, key: Hashable, entry: Entry) -> None:
        """Note that this entry served this call, and calls right before that nothing served: it would have fitted."""
        known = self._of.get(key)
        now = [] if known is None else known.now
        if known is not None:
            known.failed.pop(len(now) - 1, None)
        for place in range(len(now) - 1, -1, -1):
            if now[place] is not None and place < len(now) - 1:
                break
            now[place] = entry

    def forget(self, entry: Entry) -> None:
        """Forget an entry that is dropped."""
        for known in self._of.values():
            for failed in known.failed.values():
                failed[:] = [each for each in failed if each is not entry]
            for calls in (known.now, known.before):
                calls[:] = [None if each is entry else each for each in calls]
