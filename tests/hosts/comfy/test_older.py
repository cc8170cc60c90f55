"""A ComfyUI from before the nodes' API, from 0.3.48 down: ``COMFYUI_OLDER_PATH`` names its folder."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from tests.hosts.comfy.live_server import LiveServer
from tests.hosts.comfy.promised import NODES, inputs_of
from tests.hosts.comfy.test_server import everything
from tests.hosts.comfy.workflow import txt2img

pytestmark = [
    pytest.mark.host,
    pytest.mark.skipif("COMFYUI_OLDER_PATH" not in os.environ, reason="needs a ComfyUI before 0.3.49"),
]


def test_a_shared_workflow_runs_and_says_why_nothing_is_faster(
    server: LiveServer, comfyui_python: str, tmp_path: Path
) -> None:
    """All nodes are there with their inputs, the picture is the one that it is without them, and the node shows the
    reason.
    """
    for folder in ("models", "input"):
        (tmp_path / folder).symlink_to(server.base / folder, target_is_directory=True)
    pack = {"fast-compile": Path(__file__).resolve().parents[3]}
    live = LiveServer(tmp_path, Path(os.environ["COMFYUI_OLDER_PATH"]).resolve(), comfyui_python, pack)
    try:
        live.wait()
        for name, (shown, inputs, outputs, _) in NODES.items():
            node = live.get(f"/object_info/{name}")[name]
            assert (node["display_name"], inputs_of(node["input"]), node["output"]) == (shown, inputs, outputs)
        prompt, plain = everything(9), txt2img("tiny-sd15.safetensors", seed=9)
        plain["2"]["inputs"]["text"] = prompt["2"]["inputs"]["text"]
        plain["7"]["inputs"]["filename_prefix"] = "plain"
        prompt["40"] = {"class_type": "FastCompileReport", "inputs": {"of": ["8", 0], "after": ["5", 0]}}
        prompt["41"] = {"class_type": "PreviewImage", "inputs": {"images": ["40", 1]}}
        outputs_by_node = live.outputs(prompt)
        assert "too old for Fast Compile, which needs 0.3.64" in outputs_by_node["8"]["text"][0]
        assert len(outputs_by_node["41"]["images"]) == 1
        prompt["7"]["inputs"]["filename_prefix"] = "again"  # not from the cache
        del prompt["41"]
        assert _pixels(live.run(prompt)) == _pixels(live.run(plain))
    finally:
        live.stop()


def _pixels(images: list[bytes]) -> bytes:
    (png,) = images
    found: bytes = pytest.importorskip("PIL.Image").open(io.BytesIO(png)).tobytes()
    return found
