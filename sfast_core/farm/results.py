"""Results on disk: where they may lie, what they are called, and how they are written as a whole or not at all."""

from __future__ import annotations

import os
import re
from pathlib import Path

from .errors import FarmError

_LONGEST = 60  #: characters of a workflow's name that a result's name keeps
_RESERVED = re.compile(r"(?i)(con|prn|aux|nul|com\d|lpt\d)")  # Windows' names for devices


def folder_inside(root: Path, named: str) -> Path:
    """The folder ``named`` within ``root``, which is absolute; links are followed, so that none leads out.

    It need not exist.

    Raises:
        FarmError: it lies elsewhere.
    """
    if "\0" in named:
        raise FarmError(f"--out {named!r} is no path")
    root = root.resolve()
    folder = (root / named).resolve()
    if not folder.is_relative_to(root):
        raise FarmError(f"--out {named}: results of this farm stay inside {root} (start --output)")
    return folder


def stem(name: str) -> str:
    """What results of a workflow begin with, of its file's name: letters, digits and, within, ``-``, ``_``, ``.``."""
    kept = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.")[:_LONGEST].strip("-.") or "workflow"
    return f"{kept}-" if _RESERVED.fullmatch(kept.split(".")[0]) else kept


def job_name(workflow_name: str, seed: int | None, digest: str) -> str:
    """What the results of a job begin with: workflow, seed, and what tells this prompt from any other."""
    return "_".join(filter(None, (stem(workflow_name), "" if seed is None else str(seed), digest[:12])))


def file_name(job: str, node: str, index: int, suffix: str) -> str:
    """Of one result of a job: the node that made it and its place among that node's."""
    ending = suffix.lower() if re.fullmatch(r"\.[A-Za-z0-9]{1,8}", suffix) else ".bin"
    return f"{job}_{stem(node)}_{index}{ending}"


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that it is never seen in part, and is still there when the power fails.

    Written again it is replaced.

    Raises:
        OSError: it can't be written; nothing is left behind then.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make the new name itself lasting; where a system has no descriptors of folders, renaming does."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
