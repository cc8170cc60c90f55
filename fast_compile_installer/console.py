"""Lines for the person who watches, or for the host that captures them."""

from __future__ import annotations

import sys


def say(line: str) -> None:
    """Print one line at once, under the pack's name, on consoles of any encoding."""
    encoding = sys.stdout.encoding or "ascii"
    print(f"Fast Compile: {line}".encode(encoding, "replace").decode(encoding), flush=True)
