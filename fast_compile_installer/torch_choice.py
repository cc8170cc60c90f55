"""Says which build of PyTorch pip is about to fetch: gigabytes of CUDA, or one that knows no GPU."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from .console import say
from .packages import TORCH
from .pip import Pip

_UNKNOWN = (
    "depending on the system and the index that is the CUDA build, several gigabytes with its libraries, or one for the"
    " CPU only"
)
_CUDA = (
    "that is the CUDA build, several gigabytes with its libraries (a Python that has PyTorch already would be used as"
    " it is)"
)
_CPU = (
    "that is a build for the CPU only: all works, nothing gets faster (run this with a Python that has PyTorch for CUDA"
    " to use a GPU)"
)


def announce_torch(pip: Pip) -> None:
    """Ask pip, which downloads no more for it than it needs anyway, and tell."""
    say(f"this Python has no PyTorch; installing {TORCH} into the private environment ...")
    report = None if pip.is_uv else _dry_run(pip)
    say("  " + describe(report))


def describe(report: Any) -> str:
    """What a ``pip install --dry-run --report`` says about PyTorch; None: it could not be had."""
    try:
        metadata = report["install"][0]["metadata"]
        version, needs = str(metadata["version"]), metadata.get("requires_dist", [])
    except (TypeError, KeyError, IndexError):
        return _UNKNOWN
    if "+cu" in version or any(str(need).lower().startswith(("nvidia-", "cuda-")) for need in needs):
        return _CUDA
    return _CPU


def _dry_run(pip: Pip) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        arguments = ["--dry-run", "--quiet", "--no-deps", "--ignore-installed", "--report", str(path), TORCH]
        try:
            subprocess.run([*pip.command, *arguments], capture_output=True, check=True, timeout=600)
            return json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, subprocess.SubprocessError):
            return None
