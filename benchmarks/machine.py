"""What a figure was measured on."""

from __future__ import annotations

import datetime
import subprocess
from pathlib import Path

import torch


def facts() -> dict[str, str]:
    """GPU, driver, versions, commit and date, for every row of every table."""
    found = {
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "driver": _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "torch": torch.__version__,
        "cudnn": str(torch.backends.cudnn.version()),
        "commit": _output("git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"),
        "date": datetime.date.today().isoformat(),
    }
    try:
        import triton

        found["triton"] = triton.__version__
    except ImportError:
        found["triton"] = "none"
    return found


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip().splitlines()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return "unknown"
