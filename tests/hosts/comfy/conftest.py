"""Where ComfyUI is: ``COMFYUI_PATH`` names its folder, ``COMFYUI_PYTHON`` the Python that has its requirements (else
this one).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.chromium import chromium
from tests.hosts.comfy.live_server import LiveServer

Start = Callable[..., LiveServer]
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
    return not subprocess.run(
        [comfyui_python, "-c", "import comfyui_frontend_package"], capture_output=True, check=False
    ).returncode


@pytest.fixture(scope="session")
def start(
    comfyui: Path, comfyui_python: str, front_end: bool, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Start]:
    """``start(name, models=None, packs={}, **environment)``: a server with the pack under a name with a hyphen, and
    with more packs.

    It has models of its own, which aren't there yet, or those of another server.
    """
    started: list[LiveServer] = []

    def start_one(
        name: str, models: Path | None = None, packs: Mapping[str, Path] | None = None, **environment: str
    ) -> LiveServer:
        base = tmp_path_factory.mktemp(name)
        for folder in ("models", "input") if models else ():
            (base / folder).symlink_to(models.parent / folder, target_is_directory=True)
        packs = {"fast-compile": HERE.parents[2], **(packs or {})}
        started.append(LiveServer(base, comfyui, comfyui_python, packs, front_end, environment))
        return started[-1]

    yield start_one
    for live in started:
        live.stop()


@pytest.fixture(scope="session")
def server(start: Start, comfyui: Path, comfyui_python: str) -> Iterator[LiveServer]:
    """One server for all tests, with small models of each kind."""
    live = start("comfy")
    models = live.base / "models"
    environment = {**os.environ, "COMFYUI_PATH": str(comfyui)}
    command = [comfyui_python, str(HERE / "make_checkpoints.py"), str(models)]
    done = subprocess.run(command, env=environment, cwd=HERE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    live.wait()
    yield live
    for model in models.rglob("*.safetensors"):
        model.unlink()


@pytest.fixture
def fresh(server: LiveServer) -> LiveServer:
    """The server, with no model loaded: none that another test has compiled, whose calls would be counted."""
    server.unload()
    return server


@pytest.fixture(scope="session")
def capturing(start: Start, server: LiveServer) -> LiveServer:
    """A server whose CPU captures graphs that only pretend:
    what the nodes and the badge show of graphs is shown there.
    """
    live = start("capturing", server.base / "models", {"pretend_graphs": HERE / "pretend_graphs"})
    live.wait()
    return live


@pytest.fixture(scope="session")
def bare(start: Start, server: LiveServer, tmp_path_factory: pytest.TempPathFactory) -> LiveServer:
    """A server as on a machine without a GPU and without Triton, where the pack is not told to compile for the CPU."""
    hidden = tmp_path_factory.mktemp("hidden")
    (hidden / "triton.py").write_text("raise ImportError('Triton is hidden from this test')\n")
    path = os.pathsep.join(filter(None, (str(hidden), os.environ.get("PYTHONPATH"))))
    live = start("bare", server.base / "models", FAST_COMPILE_CPU="", PYTHONPATH=path)
    live.wait()
    return live


@pytest.fixture(scope="module")
def browser(front_end: bool) -> Iterator[Any]:
    """One to a module: pages that are left open keep half a core busy."""
    if not front_end:
        pytest.skip("needs ComfyUI's front end: pip install comfyui-frontend-package")
    with chromium() as opened:
        yield opened
