"""Where the webuis are: ``WEBUI_PATH`` names A1111's folder, ``FORGE_PATH`` Forge's, ``REFORGE_PATH`` reForge's;
``WEBUI_PYTHON``, ``FORGE_PYTHON`` and ``REFORGE_PYTHON`` the Python that has their requirements (else this one).
``WEBUI_PYTHONPATH`` is put on theirs, for what a machine without a GPU needs there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.webui.live_webui import HOSTS, LiveWebui
from tests.hosts.webui.tiny_checkpoint import write_checkpoint, write_config, write_lora, write_tokenizer, write_vae

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A ``models`` folder with two checkpoints, a LoRA and a VAE; it takes a gigabyte, and is emptied at the end."""
    base = tmp_path_factory.mktemp("webui-models")
    (checkpoints := base / "models" / "Stable-diffusion").mkdir(parents=True)
    (loras := base / "models" / "Lora").mkdir()
    (vaes := base / "models" / "VAE").mkdir()
    write_tokenizer(base / "tokenizer")
    for name, seed in (("tiny", 0), ("other", 1000)):
        write_checkpoint(checkpoints / f"{name}.safetensors", seed)
    write_config(base / "models" / "tiny.yaml", base / "tokenizer")
    write_lora(loras / "loud.safetensors")
    write_vae(vaes / "other.safetensors")
    yield base / "models"
    for file in base.rglob("*.safetensors"):
        file.unlink()


@pytest.fixture(scope="module", params=sorted(HOSTS))
def webui(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveWebui]:
    """Each webui's server in turn, with the repository and another extension in ``extensions/``."""
    host = HOSTS[request.param]
    path = os.environ.get(host.path_variable)
    if not path:
        pytest.skip(f"needs {host.name}: set {host.path_variable} to its folder")
    models: Path = request.getfixturevalue("tiny_models")
    python = os.environ.get(host.python_variable) or sys.executable
    live = LiveWebui(host, tmp_path_factory.mktemp(request.param), Path(path).resolve(), python, ROOT, models)
    try:
        live.wait()
        yield live
    finally:
        live.stop()
