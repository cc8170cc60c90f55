"""Where something was found, put into words only where somebody asks."""

from __future__ import annotations

import re
from typing import Any


class Origin:
    """A name below another place. Thousands are made in a recorded call, and a few are ever read."""

    __slots__ = ("name", "parent")

    def __init__(self, parent: Origin | None, name: Any) -> None:
        self.parent = parent
        self.name = name

    def __str__(self) -> str:
        """``blocks.0.scale``, with items as in Python; of a file that a host names by its path, the last part."""
        steps: list[Any] = []
        origin: Origin | None = self
        while origin is not None and len(steps) < 12:
            if origin.name != "_modules":  # a child goes by its own name
                steps.append(origin.name)
            origin = origin.parent
        words = ""
        for step in reversed(steps):
            words += (
                re.split(r"[/\\]", str(step))[-1]
                if not words
                else f".{step}"
                if isinstance(step, str) and (step.isidentifier() or step.isdecimal())
                else f"[{step!r}]"
            )
        return words


def last_name(origin: Any) -> Any:
    """The last name on the way to a place; None where that isn't known, and any name may be."""
    return origin.name if isinstance(origin, Origin) else None
