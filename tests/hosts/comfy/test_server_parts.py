"""The nodes for VAE, CLIP and ControlNet on ComfyUI's real server: one picture with all of them, and the report."""

from __future__ import annotations

from typing import Any

import pytest

from tests.hosts.comfy.live_server import Failed, LiveServer, Rejected
from tests.hosts.comfy.workflow import txt2img
from tests.hosts.png import only_picture

pytestmark = pytest.mark.host
SD15 = "tiny-sd15.safetensors"
_SWITCHES = {"enabled": True, "cuda_graphs": True}


def _prompt(compiled: bool, seed: int) -> dict[str, Any]:
    """A picture from a picture, with a ControlNet: text encoders, VAE both ways, ControlNet and model."""
    prompt = txt2img(SD15, {} if compiled else None, seed=seed)
    prompt["20"] = {"class_type": "LoadImage", "inputs": {"image": "tiny.png"}}
    prompt["21"] = {"class_type": "VAEEncode", "inputs": {"pixels": ["20", 0], "vae": ["1", 2]}}
    prompt["22"] = {"class_type": "ControlNetLoader", "inputs": {"control_net_name": "tiny-control.safetensors"}}
    hint = {"positive": ["2", 0], "negative": ["3", 0], "control_net": ["22", 0], "image": ["20", 0]}
    prompt["23"] = {
        "class_type": "ControlNetApplyAdvanced",
        "inputs": {**hint, "strength": 0.8, "start_percent": 0.0, "end_percent": 1.0},
    }
    prompt["5"]["inputs"] |= {"positive": ["23", 0], "negative": ["23", 1], "latent_image": ["21", 0], "denoise": 0.9}
    del prompt["4"]
    if compiled:
        for number, kind, name, source in (
            ("30", "VAE", "vae", ["1", 2]),
            ("31", "CLIP", "clip", ["1", 1]),
            ("32", "ControlNet", "control_net", ["22", 0]),
        ):
            prompt[number] = {"class_type": f"ApplyFastCompile{kind}", "inputs": {name: source, **_SWITCHES}}
        prompt["6"]["inputs"]["vae"] = prompt["21"]["inputs"]["vae"] = ["30", 0]
        prompt["2"]["inputs"]["clip"] = prompt["3"]["inputs"]["clip"] = ["31", 0]
        prompt["23"]["inputs"]["control_net"] = ["32", 0]
    return prompt


def _calls(server: LiveServer) -> dict[str, dict[str, int]]:
    return {module["name"]: module["calls"] for module in server.get("/fast_compile/report")["modules"]}


def test_a_picture_with_everything_compiled(server: LiveServer) -> None:
    """The same up to a rounding of one in 255, twice; the report names each model, and none ran as it was."""
    for seed in (1, 2):
        plain, fast = only_picture(server.run(_prompt(False, seed))), only_picture(server.run(_prompt(True, seed)))
        assert plain.shape == fast.shape and plain.std() > 1
        assert abs(plain - fast).max() <= 1, f"{abs(plain - fast).max()} of 255 apart"
    calls = _calls(server)
    names = {"ControlNet", "Text encoder clip_l (CLIPTextModel)", "VAE decoder (TAESD)", "VAE encoder (TAESD)"}
    assert names <= set(calls), set(calls)
    assert all(calls[name].get("fused") or calls[name].get("traced") for name in names), calls
    assert not any(calls[name].get("eager") for name in names), calls


def test_a_wrong_object_is_named(server: LiveServer) -> None:
    """ComfyUI refuses a connection of another type before anything runs."""
    prompt = _prompt(True, 3)
    prompt["30"]["inputs"]["vae"] = ["1", 1]
    with pytest.raises((Rejected, Failed)) as refusal:
        server.run(prompt)
    assert "vae" in str(refusal.value)
