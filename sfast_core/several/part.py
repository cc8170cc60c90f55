"""A part of a call may not run as it was: if it would have to, the whole call runs on one device instead."""

from __future__ import annotations

from typing import Any, NoReturn


class OneDevice(Exception):
    """This call has to be computed on one device. The message is the reason."""


class OfPart:
    """Stands for the original forward in the call of a part, and raises when it would be run."""

    def __call__(self, *_: Any) -> NoReturn:
        raise OneDevice("a part of it can't be compiled")

    def refuse(self, reason: str) -> NoReturn:
        """Raises :class:`OneDevice` for this reason."""
        raise OneDevice(reason)
