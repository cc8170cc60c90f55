"""``python -m benchmarks.publish FOLDER``: put the tables of a benchmark's run where they are shown, so that no figure is written by hand.

Copies FOLDER's CSV and Markdown files to ``docs/measured/`` and fills the space between ``<!-- NAME -->`` and ``<!-- /NAME -->`` in
README.md and docs/performance.md with NAME.md.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "docs/performance.md")


def fill(page: str, name: str, table: str) -> str:
    """``page`` with ``table`` between the marks of ``name``; the page itself where it has no such marks."""
    marks = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- /{re.escape(name)} -->)", re.DOTALL)
    return marks.sub(lambda found: f"{found[1]}{table.rstrip()}\n{found[2]}", page)


def main() -> None:
    """Publish one folder."""
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    folder, measured = Path(sys.argv[1]), ROOT / "docs" / "measured"
    measured.mkdir(parents=True, exist_ok=True)
    for path in sorted(folder.glob("*.csv")) + sorted(folder.glob("*.md")):
        shutil.copyfile(path, measured / path.name)
        if path.suffix == ".md":
            for name in PAGES:
                page = ROOT / name
                page.write_text(fill(page.read_text("utf-8"), path.stem, path.read_text("utf-8")), "utf-8")
            print(f"published {path.name}")


if __name__ == "__main__":
    main()
