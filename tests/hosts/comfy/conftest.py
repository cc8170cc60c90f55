"""Where ComfyUI is: ``COMFYUI_PATH`` names its folder, ``COMFYUI_PYTHON`` the Python that has its requirements (else this one)."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
NEEDS_COMFYUI = "needs a ComfyUI: set COMFYUI_PATH to its folder"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs ComfyUI where there is none."""
    if os.environ.get("COMFYUI_PATH"):
        return
    for item in items:
        if item.path.is_relative_to(HERE) and item.get_closest_marker("host"):
            item.add_marker(pytest.mark.skip(reason=NEEDS_COMFYUI))


@pytest.fixture(scope="session")
def comfyui() -> Path:
    """ComfyUI's folder."""
    return Path(os.environ["COMFYUI_PATH"]).resolve()


@pytest.fixture(scope="session")
def comfyui_python() -> str:
    """The Python that runs it."""
    return os.environ.get("COMFYUI_PYTHON") or sys.executable
