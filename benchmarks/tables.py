"""Figures as rows: read from a CSV, written as Markdown."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

Rows = list[dict[str, str]]


def read(path: Path) -> Rows:
    """A CSV's rows."""
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def markdown(head: Sequence[object], rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table with these cells."""
    first, *rest = (f"| {' | '.join(map(str, cells))} |" for cells in (head, *rows))
    return "\n".join([first, "|---" * len(head) + "|", *rest])
