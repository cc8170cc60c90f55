"""What a part of a call may not do: run as it was, for then the whole call does."""

from __future__ import annotations

from typing import Any, NoReturn


class OneDevice(Exception):
    """This call is computed on one device. The message is the reason."""


class OfPart:
    """In the place of what runs a part of a call as it was. It is never run: the whole call is, on one device."""

    def __call__(self, *_: Any) -> NoReturn:
        raise OneDevice("a part of it can't be compiled")

    def refuse(self, reason: str) -> NoReturn:
        """Raises :class:`OneDevice` for this reason."""
        raise OneDevice(reason)
