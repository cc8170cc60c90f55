"""Triton's interpreter takes what its compiler refuses, and has as much shared memory as anybody wants: the kernels are
compiled for an H100 and an RTX 4090, too, where there is no GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sfast_core.ops import all_ops

pytest.importorskip("triton")
OPS = [name for name, op in all_ops().items() if any(impl.name.startswith("triton") for impl in op.impls)]


@pytest.mark.parametrize("gpu", ["H100", "RTX 4090"])
@pytest.mark.parametrize("half", [0, 1])
def test_kernels_compile(half: int, gpu: str) -> None:
    """In a process of its own: the interpreter is chosen when a kernel is decorated."""
    names = OPS[half::2]
    environ = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | {
        "PYTHONWARNINGS": "ignore"
    }
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "tests.ops.compiling", gpu, *names],
        cwd=root,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert not found["failed"], "\n".join(found["failed"])
    assert found["tried"] >= len(names)
