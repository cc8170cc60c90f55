"""Gives a recorded forward copies of a call's lists and dicts, and afterwards does to the originals what it did to
those.
"""

from __future__ import annotations

from typing import Any

from ..capture.signature import Containers


class HandedBack:
    """The copies for one call. If the recording fails, the originals are untouched, and the block can run again."""

    def __init__(self) -> None:
        self._pairs: list[tuple[Any, Any]] = []  # a copy, and what it was made of
        self._own: dict[int, Any] = {}  # by the id of the copy, which is held
        self._containers = Containers()

    def copy(self, value: Any) -> Any:
        """``value`` with its lists, dicts and tuples copied, but not its tensors.

        Raises:
            CaptureError: it holds itself, or is too deep or too much to be part of a signature.
        """
        kind = type(value)
        if kind not in (dict, list, tuple):
            return value
        self._containers.enter(value, "an argument")
        if kind is dict:
            made = {key: self.copy(item) for key, item in value.items()}
        else:
            made = kind([self.copy(item) for item in value])
        self._containers.leave(value)
        self._own[id(made)] = value
        self._pairs.append((made, value))
        return made

    def hand_back(self) -> None:
        """To be called when the recorded forward is through: do to the originals what it did to the copies."""
        for made, own in self._pairs:
            if type(made) is dict:
                pairs = {key: self._own.get(id(item), item) for key, item in made.items()}
                if pairs.keys() != own.keys() or any(item is not own[key] for key, item in pairs.items()):
                    own.clear()
                    own.update(pairs)
            elif type(made) is list:
                items = [self._own.get(id(item), item) for item in made]
                if len(items) != len(own) or any(a is not b for a, b in zip(items, own, strict=True)):
                    own[:] = items
