"""Lines on a terminal: in colour where there is one and ``rich`` is installed, plain on a pipe and without it."""

from __future__ import annotations

import sys
from collections.abc import Callable

Say = Callable[[str, str], None]


def printer() -> Say:
    """``say(text, style)``; styles are rich's, such as ``bold`` or ``green``, and left out where there are no colours."""
    if sys.stdout.isatty():
        try:
            from rich.console import Console
        except ImportError:
            pass
        else:
            console = Console(highlight=False)
            return lambda text, style: console.print(text, style=style or None, markup=False, soft_wrap=True)
    return _plain


def _plain(text: str, style: str) -> None:
    encoding = sys.stdout.encoding or "ascii"
    print(text.encode(encoding, "replace").decode(encoding), flush=True)
