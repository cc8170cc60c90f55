"""A farm of real ComfyUIs with the pack, whose workers are killed now and then: the very bytes that one ComfyUI makes,
each picture once.
"""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest

from tests.farm.live_farm import LiveFarm
from tests.hosts.comfy.live_server import LiveServer
from tests.hosts.comfy.workflow import txt2img

pytestmark = [pytest.mark.host, pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")]
HERE = Path(__file__).resolve().parent
MODEL = "import sys, pathlib; sys.path.insert(0, sys.argv[1]); import make_checkpoints; make_checkpoints.sd15(pathlib.Path(sys.argv[2]))"
SEEDS = range(12)
WORKERS = 2


def test_the_same_bytes_as_one_comfyui_makes(comfyui: Path, comfyui_python: str, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason='needs Ray: pip install "ray[default]"')
    base = tmp_path / "comfy"
    (base / "models" / "checkpoints").mkdir(parents=True)
    made = [comfyui_python, "-c", MODEL, str(HERE), str(base / "models" / "checkpoints")]
    subprocess.run(made, env={**os.environ, "COMFYUI_PATH": str(comfyui)}, cwd=HERE, check=True)
    larger = txt2img("tiny-sd15.safetensors", {})
    larger["4"]["inputs"]["width"] = 96
    prompts = {
        "plain": txt2img("tiny-sd15.safetensors"),
        "fast": txt2img("tiny-sd15.safetensors", {}),
        "larger": larger,
    }

    one = LiveServer(base, comfyui, comfyui_python, {"fast-compile": HERE.parents[2]})
    try:
        one.wait(400)
        wanted = {}
        for name, prompt in prompts.items():
            for seed in SEEDS:
                prompt["5"]["inputs"]["seed"] = seed
                (wanted[name, seed],) = one.run(prompt)
    finally:
        one.stop()
    (base / "custom_nodes" / "fast-compile").unlink()  # the farm brings it

    options = ["--cpu", "--base-directory", str(base), "--disable-api-nodes"]
    farm = LiveFarm(
        tmp_path / "home",
        WORKERS,
        comfyui,
        comfyui_python,
        options,
        {"FAST_COMPILE_CPU": "1", "PYTHONDONTWRITEBYTECODE": "1"},
    )
    try:
        for name, prompt in prompts.items():
            farm.client.submit(name, prompt, f"{SEEDS[0]}-{SEEDS[-1]}", name)
        farm.ready(600)
        status, killed = farm.finish(1500, kill_every_s=15, chance=random.Random(4))
    finally:
        farm.stop()
    assert status["jobs"] == {"waiting": 0, "running": 0, "done": len(wanted), "aside": 0}, status
    found = {}
    for path in (tmp_path / "home" / "output").rglob("*.png"):
        seed = int(path.name.split("_")[1])
        assert (path.parent.name, seed) not in found, "twice"
        found[path.parent.name, seed] = path.read_bytes()
    different = [key for key in wanted if found.get(key) != wanted[key]]
    assert not different and len(found) == len(wanted), different
    print(f"{len(found)} pictures, {killed} kills")
