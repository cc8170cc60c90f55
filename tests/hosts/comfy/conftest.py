"""Where ComfyUI is: ``COMFYUI_PATH`` names its folder, ``COMFYUI_PYTHON`` the Python that has its requirements (else this one)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.comfy.live_server import LiveServer

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


@pytest.fixture(scope="session")
def front_end(comfyui_python: str) -> bool:
    """Whether ComfyUI's front end is installed."""
    return not subprocess.run([comfyui_python, "-c", "import comfyui_frontend_package"], capture_output=True, check=False).returncode


@pytest.fixture(scope="session")
def server(comfyui: Path, comfyui_python: str, front_end: bool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """One server for all tests, with small models of each kind, and the pack under a name with a hyphen."""
    base = tmp_path_factory.mktemp("comfy")
    live = LiveServer(base, comfyui, comfyui_python, HERE.parents[2], front_end=front_end)
    try:
        environment = {**os.environ, "COMFYUI_PATH": str(comfyui)}
        command = [comfyui_python, str(HERE / "make_checkpoints.py"), str(base / "models")]
        done = subprocess.run(command, env=environment, cwd=HERE, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        live.wait()
        yield live
    finally:
        live.stop()
        for model in (base / "models").rglob("*.safetensors"):
            model.unlink()
