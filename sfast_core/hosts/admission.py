"""Shapes that come once and never again aren't worth a trace."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from ..reporting.reasons.calls import KEEP_CHANGING

_ALLOWED, _REMEMBERED = 4, 256


class Admission:
    """Notices when shapes keep changing: pictures of any size, tiles at their edges, prompts of any length.

    A trace takes a second where the call itself takes some hundredths of one. So while four signatures or more have
    come only once, a new one isn't traced at its first call but when it comes again. As long as there are fewer, each
    is traced at once, so that the same inputs give the same bits from the first call on.
    """

    def __init__(self) -> None:
        self._calls: OrderedDict[Hashable, int] = OrderedDict()

    def reason(self, key: Hashable) -> str | None:
        """Count a call of this signature. Returns why it should run as it was, or None."""
        calls = self._calls[key] = self._calls.get(key, 0) + 1
        self._calls.move_to_end(key)
        if len(self._calls) > _REMEMBERED:
            self._calls.popitem(last=False)
        if calls > 1 or sum(count == 1 for count in self._calls.values()) <= _ALLOWED:
            return None
        return KEEP_CHANGING()
