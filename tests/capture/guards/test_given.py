"""Whose code is whose."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import sfast_core
from sfast_core import engine
from sfast_core.capture.guards.given import is_ours, is_read

_ASKED = """
import sys, torch
sys.path.insert(0, {path!r})
from sfast_core import engine
from sfast_core.capture.guards.given import is_ours, is_read
path = engine.Engine.call.__code__.co_filename
print(path)
assert is_ours(path) and not is_read(path), path
assert is_read(torch.nn.Linear.forward.__code__.co_filename) and not is_read(torch.Tensor.split.__code__.co_filename)
"""


def test_our_own_code_is_not_read() -> None:
    path = engine.Engine.call.__code__.co_filename
    assert is_ours(path) and not is_read(path)
    assert not is_ours(__file__) and is_read(__file__)


@pytest.mark.parametrize("path", ["{}", "./../{.name}"])
def test_it_is_not_where_a_link_leads_to_it_either(path: str, tmp_path: Path) -> None:
    """As in a host's folder of extensions, whatever way that is named."""
    (tmp_path / "sfast_core").symlink_to(Path(sfast_core.__file__).resolve().parent, target_is_directory=True)
    source = _ASKED.format(path=path.format(tmp_path))
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", source], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and tmp_path.name in done.stdout, done.stdout + done.stderr
