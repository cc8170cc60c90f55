"""``python -m benchmarks.publish FOLDER``: put a run's tables and plots where they are shown: none is written by hand.

Copies FOLDER's CSV, Markdown and PNG files to ``docs/measured/`` (a PNG that is missing is drawn) and fills the space
between ``<!-- NAME -->`` and ``<!-- /NAME -->`` in README.md and five pages of docs with NAME.md and NAME.png.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from .command import folder_of
from .plot import CHARTS, draw

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    "README.md",
    *(f"docs/{name}.md" for name in ("performance", "compatibility", "scaling", "quality", "several-gpus")),
)


def fill(page: str, name: str, table: str) -> str:
    """``page`` with ``table`` between the marks of ``name``; the page itself where it has no such marks."""
    marks = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- /{re.escape(name)} -->)", re.DOTALL)
    return marks.sub(lambda found: f"{found[1]}{table.rstrip()}\n{found[2]}", page)


def publish(folder: Path, root: Path = ROOT) -> list[str]:
    """Publish one run's folder into the project at ``root``; gives the names of what was published.

    A plot from before goes where the new rows have none: it would belong to another run.
    """
    measured = root / "docs" / "measured"
    measured.mkdir(parents=True, exist_ok=True)
    published = []
    for path in sorted(folder.glob("*.csv")):
        rows, plot = _copied(path, measured), path.with_suffix(".png")
        if plot.exists():
            _copied(plot, measured)
        elif draw(rows) is None:
            rows.with_suffix(".png").unlink(missing_ok=True)
    for path in sorted(folder.glob("*.md")):
        table = _copied(path, measured)
        for name in PAGES:
            page = root / name
            page.write_text(fill(page.read_text("utf-8"), table.stem, _with_plot(table, page)), "utf-8")
        published.append(table.stem)
    return published


def _copied(path: Path, folder: Path) -> Path:
    copy = folder / path.name
    if path.resolve() != copy.resolve():
        shutil.copyfile(path, copy)
    return copy


def _with_plot(table: Path, page: Path) -> str:
    """The table's text, with its plot below it where there is one, as ``page`` refers to it."""
    plot = table.with_suffix(".png")
    text = table.read_text("utf-8").rstrip()
    if table.stem not in CHARTS or not plot.exists():
        return text
    return f"{text}\n\n![{CHARTS[table.stem][0]}]({Path(os.path.relpath(plot, page.parent)).as_posix()})"


def main() -> None:
    """Publish one folder."""
    for name in publish(folder_of("publish", __doc__)):
        print(f"published {name}")


if __name__ == "__main__":
    main()
