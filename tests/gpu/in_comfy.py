"""Runs a driver in ComfyUI's own Python, as a process, and reads the JSON that it prints last."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SECONDS = 300


def run(driver: Path, *arguments: str) -> dict[str, Any]:
    """What ``driver`` found, with these command-line arguments."""
    command = [os.environ.get("COMFYUI_PYTHON") or sys.executable, str(driver), *arguments]
    done = subprocess.run(command, cwd=driver.parent, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return facts
