"""A part of a benchmark in a process of its own, whose caches are its own too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_CACHES = {
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "XDG_CACHE_HOME": "ours",
    "LOCALAPPDATA": "ours",
}


def json_of(module: str, arguments: Sequence[str], caches: Path) -> dict[str, Any]:
    """What ``python -m MODULE ARGUMENTS`` prints as JSON in its last line; what it compiles is kept in ``caches``.

    Raises:
        RuntimeError: it failed; the message holds the end of its output.
    """
    environment = {**os.environ, **{variable: str(caches / folder) for variable, folder in _CACHES.items()}}
    command = [sys.executable, "-m", module, *arguments]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if run.returncode:
        raise RuntimeError(f"{module} {' '.join(arguments)}: {run.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return found
