"""Notices when traces are made again and again and serve next to no call: something is different each time."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from .backoff import Backoff

_PAID = 8  # calls: what a trace takes is what some twenty of them gain
# 8 traces that served no call: as many prompts, each for a region of the picture, are new in one step
_USELESS, _LITTLE_USE, _ALLOWED = 2, 1, 16
_SEVERAL = 2 * _USELESS  # before the last one
_MOST = 256  # the oldest are forgotten: a model may get pictures of ever other sizes


@dataclass(eq=False)
class Tally:
    """Of calls of the same forms: those served since the last trace, and what was wasted on traces that served few."""

    served: int = _PAID
    wasted: int = 0

    @property
    def useless(self) -> bool:
        """Whether several traces in a row served no call."""
        return not self.served and self.wasted >= _SEVERAL


class RecompileLimit:
    """Counts, by the tensors' forms, traces that served fewer than 8 calls before the next was made; twice if none.

    Behind 16 of them in a row the next trace is the last for a while: then calls run as they were, more of them each
    time, at most 128 between two traces. A trace takes as long as some dozen calls, and when the changes end no more
    than a few pictures are to be slow still.
    """

    def __init__(self) -> None:
        self._tallies: dict[Hashable, Tally] = {}
        self._backoff = Backoff()

    def traced(self, forms: Hashable, reason: str) -> Tally:
        """Note that a call of these forms is traced, and why the traces before it don't do.

        Returns where to count the calls that are served.
        """
        tally = self._tallies.setdefault(forms, Tally())
        while len(self._tallies) > _MOST:
            self._tallies.pop(next(iter(self._tallies)))
        tally.wasted = 0 if tally.served >= _PAID else tally.wasted + (_LITTLE_USE if tally.served else _USELESS)
        tally.served = 0
        if tally.wasted >= _ALLOWED:
            self._backoff.failed(forms, reason)
        return tally

    def reason(self, forms: Hashable) -> str | None:
        """Why a call that has no trace is to run as it was, and counts it; None where it may be traced."""
        tally = self._tallies.get(forms)
        if tally is not None and tally.served >= _PAID:
            self._backoff.succeeded(forms)
        return self._backoff.reason(forms)

    def clear(self) -> None:
        """Forget everything."""
        self._tallies.clear()
        self._backoff.clear()
