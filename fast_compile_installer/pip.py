"""Runs pip, or uv where there is no pip, and turns what it prints into a few lines."""

from __future__ import annotations

import importlib.util
import os
import queue
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .console import say

HEARTBEAT_S = 15.0
_DOWNLOAD = re.compile(r"Downloading (?:\S*/)?(?P<name>[^\s/-]+)-(?P<version>[^\s-]+)\S* \((?P<size>[\d.]+) MB\)")


class PipError(Exception):
    """pip did not install what it was asked for; the message is its own last word on that."""


@dataclass(frozen=True)
class Pip:
    """How packages get into one Python, or into one folder: a command that ends in ``install``."""

    command: tuple[str, ...]
    is_uv: bool = False

    def into(self, folder: Path) -> Pip:
        """The same, but into a folder of its own instead of the Python's."""
        return Pip((*self.command, "--target", str(folder), "--upgrade"), self.is_uv)

    def install(self, arguments: Sequence[str], *, show: bool, limit_s: float | None = None) -> None:
        """Install these. ``show`` prints what takes long while it happens.

        Raises:
            PipError: it failed, or took longer than ``limit_s``.
        """
        own = [] if self.is_uv else ["--no-input", "--disable-pip-version-check", "--progress-bar", "off"]
        index = os.environ.get("INDEX_URL")  # A1111's variable for the index that its own installs use
        if index:
            own += ["--index-url", index]
        tail: deque[str] = deque(maxlen=30)
        code = _stream([*self.command, *own, *arguments], tail, show, limit_s)
        if code is None:
            raise PipError(f"stopped after {limit_s:.0f} s")
        if code != 0:
            raise PipError(_last_word(tail))


def for_running_python() -> Pip | None:
    """pip for ``sys.executable``, or uv, or None."""
    if importlib.util.find_spec("pip") is not None:
        # Portable Pythons leave the user's own site-packages out; so must the pip that serves them.
        alone = sys.flags.no_user_site or "python_embed" in sys.executable.lower()
        return Pip((sys.executable, *(["-s"] if alone else []), "-m", "pip", "install"))
    uv = shutil.which("uv")
    return Pip((uv, "pip", "install", "--python", sys.executable), is_uv=True) if uv else None


def condense(line: str) -> str | None:
    """What is worth showing of a line of pip's, or None."""
    download = _DOWNLOAD.search(line)
    if download and float(download["size"]) >= 1:
        return f"  {download['name']} {download['version']} ({float(download['size']):.0f} MB)"
    if line.startswith("Installing collected packages:"):
        return f"  unpacking {line.count(',') + 1} packages"
    return None


def _stream(command: Sequence[str], tail: deque[str], show: bool, limit_s: float | None) -> int | None:
    """Run ``command``, keep its last lines in ``tail``, and give its exit code, or None where it was stopped."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    )
    lines: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=_read, args=(process, lines), daemon=True).start()
    started = shown = time.monotonic()
    try:
        while True:
            now = time.monotonic()
            if limit_s is not None and now - started > limit_s:
                return None
            try:
                line = lines.get(timeout=1.0)
            except queue.Empty:
                if show and now - shown > HEARTBEAT_S:
                    say(f"  ... {now - started:.0f} s")
                    shown = now
                continue
            if line is None:
                return process.wait()
            tail.append(line)
            brief = condense(line) if show else None
            if brief:
                say(brief)
                shown = now
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _read(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    if process.stdout is not None:
        for line in process.stdout:
            lines.put(line.rstrip())
    lines.put(None)


def _last_word(tail: Sequence[str]) -> str:
    """pip's last error line; the last line where none is marked as an error."""
    errors = [line for line in tail if line.lower().startswith("error")]
    told = [line for line in tail if line.strip()]
    return (errors or told or ["it gave no reason"])[-1].strip()[:300]
