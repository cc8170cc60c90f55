"""``python -m benchmarks.reasons``: put the table of reasons into docs/troubleshooting.md, so that it says what the
report and the log do.
"""

from __future__ import annotations

from pathlib import Path

from sfast_core.reporting.reasons import table

from .publish import ROOT, fill

PAGE = ROOT / "docs" / "troubleshooting.md"


def page(text: str) -> str:
    """The page with the table as it is now."""
    return fill(text, "reasons", "\n".join(table()))


def main(path: Path = PAGE) -> None:
    """Write it."""
    path.write_text(page(path.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
