"""ComfyUI's real server with the pack in ``custom_nodes``: pictures through ``POST /prompt``, the report, what the editor is told."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.comfy.live_server import LiveServer, Rejected
from tests.hosts.comfy.workflow import txt2img

pytestmark = pytest.mark.host
ROOT = Path(__file__).resolve().parents[3]
SD15, SDXL = "tiny-sd15.safetensors", "tiny-sdxl.safetensors"


def _pixels(images: list[bytes]) -> Any:
    numpy, image = pytest.importorskip("numpy"), pytest.importorskip("PIL.Image")
    (png,) = images
    return numpy.asarray(image.open(io.BytesIO(png)).convert("RGB")).astype(int)


def _assert_same_picture(mine: list[bytes], theirs: list[bytes]) -> None:
    a, b = _pixels(mine), _pixels(theirs)
    assert a.shape == b.shape and b.std() > 1, "a picture of one colour proves nothing"
    assert abs(a - b).max() <= 1, f"{abs(a - b).max()} of 255 apart"


def _module(server: LiveServer, name: str) -> dict[str, Any]:
    found = [module for module in server.get("/fast_compile/report")["modules"] if module["name"] == name]
    assert len(found) == 1, found
    return dict(found[0])


def test_the_pack_loads(server: LiveServer) -> None:
    """Under its folder's name, without an error."""
    log = server.log.read_text()
    assert "IMPORT FAILED" not in log and "fast-compile" in log


def test_what_the_editor_is_told(server: LiveServer) -> None:
    """The ids, inputs and defaults that saved workflows rely on."""
    apply, settings = (server.get(f"/object_info/{name}")[name] for name in ("ApplyFastCompile", "FastCompileSettings"))
    assert list(apply["input"]["required"]) == ["model", "enabled", "cuda_graphs"] and list(apply["input"]["optional"]) == ["settings"]
    assert apply["input"]["required"]["enabled"][1]["default"] is True and apply["input"]["required"]["cuda_graphs"][1]["default"] is True
    assert apply["output"] == ["MODEL"] and apply["display_name"] == "Apply Fast Compile" and apply["output_node"] is False
    defaults = {name: spec[1]["default"] for name, spec in settings["input"]["required"].items()}
    assert defaults == {
        "graph_memory_mb": 0, "capture_after": 2, "adopt_weights": True, "measure_impls": True, "disabled_rewrites": "",
    }  # fmt: skip
    assert settings["output"] == apply["input"]["optional"]["settings"][:1] == ["FAST_COMPILE_SETTINGS"]


def test_a_picture_with_and_without_the_node(server: LiveServer) -> None:
    """The same up to a rounding of one in 255, and the report says that it ran fused."""
    plain = server.run(txt2img(SD15))
    traced = server.run(txt2img(SD15, {}))
    _assert_same_picture(traced, plain)
    fast = server.run(txt2img(SD15, {}, seed=2))
    _assert_same_picture(fast, server.run(txt2img(SD15, seed=2)))
    module = _module(server, "SD15")
    assert module["calls"] == {"traced": 1, "fused": 3} and module["reasons"] == {}
    assert module["signatures"][0]["passes"]["fuse_attention"] > 0
    server.run(txt2img(SD15, {"enabled": False}, seed=3))
    assert _module(server, "SD15")["calls"] == module["calls"]


def test_settings(server: LiveServer) -> None:
    """They arrive, and a name that doesn't exist is refused before anything runs, with the input's name."""
    prompt = txt2img(SD15, {"settings": ["9", 0]}, seed=4)
    inputs = {"graph_memory_mb": 256, "capture_after": 3, "adopt_weights": False, "measure_impls": False, "disabled_rewrites": "pack_qkv"}
    prompt["9"] = {"class_type": "FastCompileSettings", "inputs": inputs}
    _assert_same_picture(server.run(prompt), server.run(txt2img(SD15, seed=4)))
    settings = _module(server, "SD15")["settings"]
    assert settings["graph_budget_bytes"] == 256 * 2**20 and settings["disabled_passes"] == ["pack_qkv"]
    prompt["9"]["inputs"]["disabled_rewrites"] = "pack_kvq"
    prompt["5"]["inputs"]["seed"] = 5
    with pytest.raises(Rejected) as refusal:
        server.run(prompt)
    (error,) = refusal.value.answer["node_errors"]["9"]["errors"]
    assert "disabled_rewrites" in error["details"] and "pack_kvq" in error["details"]


def test_after_unloading(server: LiveServer) -> None:
    """``POST /free`` takes the models away while they are compiled; the next pictures are right, and the report answers."""
    plain = server.run(txt2img(SD15, seed=6))
    server.run(txt2img(SD15, {}, seed=6))
    server.post("/free", {"unload_models": True, "free_memory": True})
    time.sleep(2)  # the queue's thread looks for it once a second
    assert server.get("/fast_compile/report")["versions"]["torch"]
    _assert_same_picture(server.run(txt2img(SD15, {}, seed=6)), plain)
    _assert_same_picture(server.run(txt2img(SD15, {}, seed=6, steps=3)), server.run(txt2img(SD15, seed=6, steps=3)))
