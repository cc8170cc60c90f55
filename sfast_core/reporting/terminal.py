"""Lines on a terminal: in colour where there is one and ``rich`` is installed, plain on a pipe and without it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import TypeAlias

#: In quotes: a Python that is too old for all else still says so, and one before 3.9 can't compute it.
Say: TypeAlias = "Callable[[str, str], None]"


def printer() -> Say:
    """``say(text, style)``, in rich's styles (``bold``, ``green``), which are left out without colours."""
    if sys.stdout.isatty():
        try:
            from rich.console import Console
        except ImportError:
            pass
        else:
            console = Console(highlight=False)
            return lambda text, style: console.print(text, style=style or None, markup=False, soft_wrap=True)
    return _plain


def exit_code(command: Callable[[], Any]) -> int:
    """The exit code that a command returns, or that it ends with where the user or the reader of its lines stops it."""
    try:
        return int(command())
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader, such as head, has seen enough
        sys.stderr.close()
        return 1


def _plain(text: str, style: str) -> None:
    encoding = sys.stdout.encoding or "ascii"
    print(text.encode(encoding, "replace").decode(encoding), flush=True)
