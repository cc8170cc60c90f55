"""A few sessions of random workflows in a real ComfyUI used as a library; ``random_workflows`` says how to try more."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
SESSIONS = 10
SECONDS = 1800


@pytest.mark.host
def test_random_workflows(comfyui: Path, comfyui_python: str) -> None:
    """Each queue gives plain ComfyUI's latent up to rounding, none fails, and nearly all calls are fused."""
    environment = {**os.environ, "COMFYUI_PATH": str(comfyui), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [comfyui_python, "-m", "random_workflows", "0", str(SESSIONS)],
        **{"env": environment, "cwd": HERE, "capture_output": True, "text": True, "timeout": SECONDS, "check": False},
    )
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"seed": ')]
    assert len(found) == SESSIONS, done.stderr[-3000:]
    calls: Counter[str] = sum((Counter(session["calls"]) for session in found), Counter())
    assert not done.returncode, "\n".join(note for session in found for note in session["notes"])
    assert calls["fused"] > 10 * calls["eager"], dict(calls)
