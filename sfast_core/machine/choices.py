"""Keeps on disk which impl was fastest for which shape.

There is one JSON file per machine, named by a hash of all that a choice depends on: GPU, driver, versions, and the
source of our kernels. A damaged or foreign file or entry counts as missing. A write merges with what other processes
have written, under a lock, and replaces the file atomically.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import stat
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..native.build import source_hash
from ..target import Target
from .file_lock import locked

_FORMAT = 3
_LOCK = "choices.lock"  #: an empty file, for all files of a folder
_LOCK_S = 5.0  #: how long to wait for the lock; writing takes milliseconds
_LARGEST = 64 * 2**20  #: the largest file that is read, in bytes; a thousand choices take 200 thousand
_BUSY_TRIES = 20  #: Windows can't replace a file while another process has it open


def cache_folder() -> Path | None:
    """The user's cache folder for this pack; None where ``platformdirs`` is missing."""
    try:
        import platformdirs
    except ImportError:
        return None
    return Path(platformdirs.user_cache_dir("fast_compile", appauthor=False))


def machine_key(target: Target) -> str:
    """A hash of the GPU, the driver, the libraries and the source of the ops and of the CUDA extension."""
    facts: list[Any] = [
        _FORMAT,
        target.key(),
        torch.__version__,
        torch.version.cuda,
        torch.backends.cudnn.version(),
        source_hash(),
    ]
    if target.is_cuda:
        with contextlib.suppress(AttributeError, RuntimeError):
            facts.append(torch._C._cuda_getDriverVersion())
    if target.triton:
        import triton

        facts.append(triton.__version__)
    digest = hashlib.sha256(repr(facts).encode())
    for path in sorted((Path(__file__).parent.parent / "ops").rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:24]


class Choice(NamedTuple):
    """The impl chosen for a call, the call's family and size (:class:`~..runtime.job.Job`), and its seconds."""

    key: str
    family: str
    size: int
    impl: str
    seconds: float


def times_apart(one: int, other: int) -> float:
    """The ratio of the larger of two sizes to the smaller."""
    return max(one, other) / min(one, other)


class Choices:
    """Choices by key, in memory and in ``path`` (None: in memory only)."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._choices: dict[str, Choice] = self._read()

    @classmethod
    def of(cls, target: Target, folder: Path | None = None) -> Choices:
        """The choices of this machine."""
        folder = folder or cache_folder()
        return cls(folder / f"choices-{machine_key(target)}.json" if folder else None)

    def get(self, key: str) -> Choice | None:
        """The choice for ``key``, or None."""
        return self._choices.get(key)

    def nearest(self, family: str, size: int) -> Choice | None:
        """The choice for the call of ``family`` that is nearest in size, or None."""
        alike = (choice for choice in self._choices.values() if choice.family == family)
        return min(alike, key=lambda choice: (times_apart(choice.size, size), choice.key), default=None)

    def add(self, choices: Iterable[Choice]) -> None:
        """Keep ``choices``. If the folder can't be written to, they last as long as the process."""
        new = {choice.key: choice for choice in choices if self._choices.get(choice.key) != choice}
        if not new:
            return
        with self._lock:
            self._choices.update(new)
            if self._path is not None:
                with contextlib.suppress(OSError):
                    self._write(self._path)

    def _read(self) -> dict[str, Choice]:
        if self._path is None:
            return {}
        try:
            what = self._path.stat()
            # reading from a pipe or a device would never end
            if not stat.S_ISREG(what.st_mode) or what.st_size > _LARGEST:
                return {}
            content = json.loads(self._path.read_text("utf-8"))
            if content["format"] != _FORMAT:
                return {}
            read = (_choice(key, value) for key, value in content["choices"].items())
            return {choice.key: choice for choice in read if choice is not None}
        except Exception:
            # a foreign file may fail in any way, and choices can be measured again
            return {}

    def _write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.parent / _LOCK, _LOCK_S):
            merged = {**self._read(), **self._choices}
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    choices = {key: choice[1:] for key, choice in merged.items()}
                    json.dump({"format": _FORMAT, "choices": choices}, file, indent=0, sort_keys=True)
                _replace(name, path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(name)
                raise


def _choice(key: str, value: Any) -> Choice | None:
    """An entry of a file as a choice, or None where it isn't one."""
    try:
        family, size, impl, seconds = value
        if isinstance(family, str) and isinstance(impl, str) and type(size) is int and type(seconds) in (int, float):
            seconds = float(seconds)
            if math.isfinite(seconds) and 0 <= seconds and size < 2**63:
                return Choice(key, family, max(1, size), impl, seconds)
            return None
    except (TypeError, ValueError, OverflowError):
        pass
    return None


def _replace(name: str, path: Path) -> None:
    """Replace ``path`` by the file ``name``."""
    for _ in range(_BUSY_TRIES - 1):
        try:
            return os.replace(name, path)
        except PermissionError:
            if os.name != "nt":
                raise
            time.sleep(0.01)
    os.replace(name, path)
