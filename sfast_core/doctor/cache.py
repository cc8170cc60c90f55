"""The folder in which the choices between kernels are kept: its size, whether it is whole, and how to empty it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from ..machine.choices import cache_folder, machine_key
from ..target import Target
from .findings import NOTE, OK, Finding

_PATTERN = "choices-*"  # with what a process that was ended left of its writing


def examine_cache(target: Target, folder: Path | None) -> Iterator[Finding]:
    """How many choices are kept in ``folder`` (None: there is none), and whether its files can be read and written."""
    if folder is None:
        text = "platformdirs is missing: kernels are measured anew in each process"
        yield Finding(NOTE, "cache", text, "pip install platformdirs")
        return
    files = sorted(folder.glob(_PATTERN)) if folder.is_dir() else []
    size = sum(path.lstat().st_size for path in files)
    yield Finding(OK, "cache", f"{folder}: {len(files)} files, {size / 1024:.0f} KB")
    mine = folder / f"choices-{machine_key(target)}.json"
    yield Finding(
        OK,
        "cache of this machine",
        f"{_count(mine) or 0} choices" if mine.exists() else "empty: it fills while models run",
    )
    if damaged := [path.name for path in files if _count(path) is None]:
        text = f"can't be read, and count as empty: {', '.join(damaged)}"
        yield Finding(NOTE, "cache", text, "python -m sfast_core doctor --clear-cache")
    parent = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    if not os.access(parent, os.W_OK):
        text = f"{parent} can't be written to: kernels are measured anew in each process"
        yield Finding(NOTE, "cache", text, f"give yourself access to {parent}")


def clear_cache(folder: Path | None = None) -> tuple[int, int]:
    """Delete the kept choices, and nothing else; returns how many files and bytes.

    Raises:
        OSError: a file can't be deleted.
    """
    folder, files, size = folder or cache_folder(), 0, 0
    for path in folder.glob(_PATTERN) if folder is not None and folder.is_dir() else ():
        size += path.lstat().st_size
        path.unlink()
        files += 1
    return files, size


def _count(path: Path) -> int | None:
    """How many choices a file holds; None where it can't be read."""
    try:
        return len(json.loads(path.read_text("utf-8"))["choices"]) if path.is_file() else None
    except Exception:  # whatever lies there
        return None
