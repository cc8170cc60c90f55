"""What a figure was measured on."""

from __future__ import annotations

import csv
import datetime
import os
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from .plot import draw


def facts() -> dict[str, str]:
    """GPU, driver, versions, commit and date, for every row of every table.

    ``FAST_COMPILE_COMMIT`` names the commit where the sources are a copy without their history.
    """
    found = {
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "driver": _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "torch": torch.__version__,
        "cudnn": str(torch.backends.cudnn.version()),
        "commit": (
            os.environ.get("FAST_COMPILE_COMMIT")
            or _output("git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD")
        ),
        "date": datetime.date.today().isoformat(),
    }
    try:
        import triton

        found["triton"] = triton.__version__
    except ImportError:
        found["triton"] = "none"
    return found


def write(folder: Path, name: str, rows: list[Any], table: str, machine: dict[str, str]) -> str:
    """Write a run's rows (dataclasses) as NAME.csv, its table as NAME.md, its plot as NAME.png; returns the Markdown.

    The plot only where NAME has one and matplotlib is installed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"{name}.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*asdict(rows[0]), *machine])
        writer.writeheader()
        writer.writerows({**asdict(row), **machine} for row in rows)
    text = f"{table}\n\nMeasured on {', '.join(f'{key} {value}' for key, value in machine.items())}.\n"
    (folder / f"{name}.md").write_text(text, "utf-8")
    draw(folder / f"{name}.csv")
    return text


def _output(*command: str) -> str:
    try:
        return (
            subprocess.run(command, capture_output=True, text=True, check=True, timeout=5)
            .stdout.strip()
            .splitlines()[0]
        )
    except (OSError, subprocess.SubprocessError, IndexError):
        return "unknown"
