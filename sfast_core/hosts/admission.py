"""Shapes that come once and never again aren't worth a trace."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from ..reporting.reasons.calls import KEEP_CHANGING

_ALLOWED, _REMEMBERED = 4, 256


class Admission:
    """Tells when shapes keep changing: pictures of any size, tiles at their edges, prompts of any length.

    A trace takes a second where the call itself takes some hundredths. So while there are four signatures or more that
    came only once, a new one runs as it was the first time and is traced when it comes again. Until then each is traced
    at once, so that the same inputs give the same bits from the first call on.
    """

    def __init__(self) -> None:
        self._calls: OrderedDict[Hashable, int] = OrderedDict()

    def reason(self, key: Hashable) -> str | None:
        """Count a call of this signature; why it is to run as it was, or None."""
        calls = self._calls[key] = self._calls.get(key, 0) + 1
        self._calls.move_to_end(key)
        if len(self._calls) > _REMEMBERED:
            self._calls.popitem(last=False)
        if calls > 1 or sum(count == 1 for count in self._calls.values()) <= _ALLOWED:
            return None
        return KEEP_CHANGING()
