"""ComfyUI's real server with the pack in ``custom_nodes``: pictures through ``POST /prompt``, the report, what the
editor is told.
"""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.comfy.live_server import LiveServer, Rejected
from tests.hosts.comfy.promised import NODES, inputs_of
from tests.hosts.comfy.workflow import txt2img
from tests.hosts.png import only_picture

pytestmark = pytest.mark.host
ROOT = Path(__file__).resolve().parents[3]
SD15, SDXL = "tiny-sd15.safetensors", "tiny-sdxl.safetensors"


def _assert_same_picture(mine: list[bytes], theirs: list[bytes]) -> None:
    a, b = only_picture(mine), only_picture(theirs)
    assert a.shape == b.shape and b.std() > 1, "a picture of one colour proves nothing"
    assert abs(a - b).max() <= 1, f"{abs(a - b).max()} of 255 apart"


def everything(seed: int) -> dict[str, Any]:
    """A prompt whose model, text encoder and VAE all go through the pack."""
    prompt = txt2img(SD15, {}, seed=seed)
    for number, kind, name, source in (("30", "VAE", "vae", ["1", 2]), ("31", "CLIP", "clip", ["1", 1])):
        prompt[number] = {
            "class_type": f"ApplyFastCompile{kind}",
            "inputs": {name: source, "enabled": True, "cuda_graphs": True},
        }
    prompt["6"]["inputs"]["vae"] = ["30", 0]
    prompt["2"]["inputs"]["clip"] = prompt["3"]["inputs"]["clip"] = ["31", 0]
    prompt["2"]["inputs"]["text"] = f"a photo of a cat, {seed}"
    return prompt


def _module(server: LiveServer, name: str) -> dict[str, Any]:
    found = [module for module in server.get("/fast_compile/report")["modules"] if module["name"] == name]
    assert len(found) == 1, found
    return dict(found[0])


def test_the_pack_loads(server: LiveServer) -> None:
    """Under its folder's name, without an error. Nodes of ComfyUI's own may lack something on this machine."""
    said = [line for line in server.log.read_text().splitlines() if line.endswith("fast-compile")]
    assert said and not any("IMPORT FAILED" in line for line in said), said


@pytest.mark.parametrize("name", NODES)
def test_what_saved_workflows_rely_on(server: LiveServer, name: str) -> None:
    """The editor is told the ids, inputs, defaults and outputs that are promised."""
    node = server.get(f"/object_info/{name}")[name]
    assert (node["display_name"], inputs_of(node["input"]), node["output"], node["output_node"]) == NODES[name]
    assert node["category"] == "model/fast compile"


def test_there_are_no_other_nodes(server: LiveServer) -> None:
    """A new one is a promise too."""
    assert {
        name for name, node in server.get("/object_info").items() if node["category"] == "model/fast compile"
    } == set(NODES)


def test_a_picture_with_and_without_the_node(fresh: LiveServer) -> None:
    """The same up to a rounding of one in 255, and the report says that it ran fused."""
    server = fresh
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


def test_a_quality_below_exact_is_in_the_pictures(fresh: LiveServer) -> None:
    """Beside the workflow, as the editor queues it: what was set and what was done.

    A prompt of the API's has the setting in itself.
    """
    (png,) = fresh.run(txt2img(SD15, {"quality": "near-exact"}, seed=6), workflow={"nodes": []})
    assert (
        b"fast_compile" in png and b'{"quality": "near-exact", "done": ["' in png and b"linear layers in 8 bits" in png
    )
    assert fresh.get("/fast_compile/report")["modules"][0]["signatures"][0]["passes"]["eight_bits"] > 20
    (exact,) = fresh.run(txt2img(SD15, {}, seed=6), workflow={"nodes": []})
    assert (
        b"fast_compile" not in exact.replace(b"FastCompile", b"")
        and abs(only_picture([png]) - only_picture([exact])).max() <= 40
    )


def test_settings(fresh: LiveServer) -> None:
    """They arrive, and a name that doesn't exist is refused before anything runs, with the input's name."""
    server = fresh
    prompt = txt2img(SD15, {"settings": ["9", 0]}, seed=4)
    inputs = {
        "graph_memory_mb": 256,
        "capture_after": 3,
        "adopt_weights": False,
        "measure_impls": False,
        "disabled_rewrites": "pack_qkv",
    }
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


def test_at_most_one_line_for_a_picture(bare: LiveServer) -> None:
    """Where nothing is accelerated ComfyUI's start says why, and what runs as it was is logged once each, with what
    one can do, and one a picture.
    """
    counts = [len(bare.lines())]  # other tests may have run pictures before
    for seed in range(4):
        bare.run(everything(seed))
        counts.append(len(bare.lines()))
    assert all(after - before <= 1 for before, after in pairwise(counts)), bare.lines()
    assert 0 < len(set(bare.lines())) == counts[-1], bare.lines()
    at_start, *of_pictures = bare.lines()
    assert "nothing is faster here, because " in at_start and "What you can do: " in at_start, at_start
    assert of_pictures and all("runs as it was" in line and "What you can do: " in line for line in of_pictures), (
        of_pictures
    )


def test_a_machine_without_gpu_and_triton(bare: LiveServer, server: LiveServer) -> None:
    """A shared workflow gives the very picture that it gives without the pack, and the report says why nothing is
    faster.
    """
    plain = txt2img(SD15, seed=9)
    plain["2"]["inputs"]["text"] = everything(9)["2"]["inputs"]["text"]
    assert (only_picture(bare.run(everything(9))) == only_picture(server.run(plain))).all()
    report = bare.get("/fast_compile/report")
    # a CLIP from before may be loaded and its words cached
    called = [module for module in report["modules"] if module["calls"]]
    assert called and all(module["calls"] == {"eager": sum(module["reasons"].values())} for module in called), report[
        "modules"
    ]
    assert any("which isn't a CUDA device" in reason for module in report["modules"] for reason in module["reasons"])
    text = bare.text("/fast_compile/report?format=text")
    assert "what you can do: nothing is faster without an NVIDIA GPU" in text
    assert not any("Triton is hidden" in line for line in bare.lines())


def test_after_unloading(server: LiveServer) -> None:
    """``POST /free`` takes the models away while they are compiled; the next pictures are right, and the report
    answers.
    """
    plain = server.run(txt2img(SD15, seed=6))
    server.run(txt2img(SD15, {}, seed=6))
    server.post("/free", {"unload_models": True, "free_memory": True})
    time.sleep(2)  # the queue's thread looks for it once a second
    assert server.get("/fast_compile/report")["versions"]["torch"]
    _assert_same_picture(server.run(txt2img(SD15, {}, seed=6)), plain)
    _assert_same_picture(server.run(txt2img(SD15, {}, seed=6, steps=3)), server.run(txt2img(SD15, seed=6, steps=3)))
