"""Lines for the person who watches, or for the host that captures them."""

from __future__ import annotations

import sys


def say(line: str) -> None:
    """Print one line at once, under the pack's name, on consoles of any encoding."""
    encoding = sys.stdout.encoding or "ascii"
    print(f"Fast Compile: {line}".encode(encoding, "replace").decode(encoding), flush=True)


def announce(line: str) -> None:
    """Say what takes long before it does, also on the terminal, where a host (A1111) keeps output to the end."""
    say(line)
    if sys.stdout.isatty():
        return
    try:
        with open(
            "CONOUT$" if sys.platform == "win32" else "/dev/tty", "w", encoding="utf-8", errors="replace"
        ) as terminal:
            terminal.write(f"Fast Compile: {line}\n")
    except OSError:  # there is no terminal
        pass
