"""The end of a generation, whatever ends it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def at_the_end(p: Any, end: Callable[[], None]) -> None:
    """Have ``end`` called when the webui closes its object for a generation,
    which it does after an exception as well.
    """
    close = getattr(p, "close", None)
    if close is None or getattr(close, "of_fast_compile", False):
        return

    def closed() -> None:
        end()
        close()

    closed.of_fast_compile = True  # type: ignore[attr-defined]
    p.close = closed
