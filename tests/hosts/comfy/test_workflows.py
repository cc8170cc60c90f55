"""The example workflows that ComfyUI offers in its template browser: consistent in themselves, and with the node in its
place.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.comfy.live_server import LiveServer
from tests.hosts.comfy.workflow import api_form, check, chosen, described

EXAMPLES = sorted((Path(__file__).resolve().parents[3] / "example_workflows").glob("*.json"))


FAST = {"ApplyFastCompile", "ApplyFastCompileControlNet"}
#: What a node is given on the real server: models that are here, sizes that a CPU can do.
SMALL: dict[str, dict[str, Any]] = {
    "EmptyLatentImage": {"width": 64, "height": 64},
    "ImageScale": {"width": 64, "height": 64},
    "KSampler": {"steps": 3},
    "FastCompileBenchmark": {"width": 64, "height": 64, "steps": 2, "rounds": 1},
    "LoadImage": {"image": "tiny.png"},
    "LoraLoader": {"lora_name": "tiny-lora.safetensors"},
    "ControlNetLoader": {"control_net_name": "tiny-control.safetensors"},
}
#: The examples whose nodes the tiny SDXL checkpoint can do: the LoRA and the ControlNet that are here are for SD1.5.
SDXL = {"sdxl_txt2img": "tiny-sdxl.safetensors", "sdxl_img2img": "tiny-sdxl.safetensors"}
#: Whose models no test has: that their nodes and inputs are ComfyUI's is looked at.
LARGE = {"flux_dev_txt2img", "z_image_turbo_txt2img", "qwen_image_txt2img", "wan22_5b_video"}
LOADERS = {
    "CheckpointLoaderSimple": "checkpoints",
    "UNETLoader": "diffusion_models",
    "CLIPLoader": "text_encoders",
    "DualCLIPLoader": "text_encoders",
    "VAELoader": "vae",
    "LoraLoader": "loras",
    "ControlNetLoader": "controlnet",
}


def test_there_are_examples() -> None:
    """Both main families, and what people do with them."""
    names = {
        "sd15_txt2img",
        "sdxl_txt2img",
        "sdxl_lora_controlnet",
        "sdxl_img2img",
        "sd15_hires_fix",
        "benchmark",
        *LARGE,
    }
    assert {file.stem for file in EXAMPLES} == names
    shown = {file.with_suffix(".jpg").read_bytes() for file in EXAMPLES}
    assert len(shown) == len(EXAMPLES), "what the template browser shows of each"


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_an_example(file: Path) -> None:
    """Ids and links agree, and the node stands between a loader and whatever samples, with its defaults."""
    workflow = json.loads(file.read_text())
    check(workflow)
    assert all(node["widgets_values"] == [True, True] for node in workflow["nodes"] if node["type"] in FAST)
    (node,) = [node for node in workflow["nodes"] if node["type"] == "ApplyFastCompile"]
    kinds = {item["id"]: item["type"] for item in workflow["nodes"]}
    assert [kinds[link[1]] for link in workflow["links"] if link[3] == node["id"]][0] in (
        "CheckpointLoaderSimple",
        "LoraLoader",
        "UNETLoader",
        "ModelSamplingAuraFlow",
        "ModelSamplingSD3",
    )
    sampling = {identity for identity, kind in kinds.items() if kind in ("KSampler", "FastCompileBenchmark")}
    assert sampling == {link[3] for link in workflow["links"] if link[1] == node["id"]}, "something samples without it"


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_where_its_models_are_had(file: Path) -> None:
    """ComfyUI's panel of missing models reads it: the file that the loader names, a place for it, an address."""
    for node in json.loads(file.read_text())["nodes"]:
        if node["type"] in LOADERS:
            models = node["properties"]["models"]
            assert {model["name"] for model in models} == {
                value for value in node["widgets_values"] if str(value).endswith(".safetensors")
            }
            for model in models:
                assert (
                    set(model) == {"name", "url", "directory"}
                    and model["url"].startswith("https://")
                    and model["url"].endswith(f"/{model['name']}")
                )
                assert model["directory"] == LOADERS[node["type"]]


@pytest.mark.host
@pytest.mark.parametrize("name", sorted(LARGE))
def test_a_large_example_is_understood(name: str, server: LiveServer) -> None:
    """Each node, input and choice is one that this ComfyUI has; the files aren't there."""
    workflow, known = json.loads((EXAMPLES[0].parent / f"{name}.json").read_text()), server.get("/object_info")
    prompt = api_form(workflow, known)
    for node in prompt.values():
        about = known[node["class_type"]]["input"]
        assert set(about.get("required", {})) <= set(node["inputs"]), node
        inputs = node["inputs"]
        for key, value in inputs.items():
            *path, name = key.split(".")
            info = about
            for depth, part in enumerate(path):
                info = chosen(described(info)[part], inputs[".".join(path[: depth + 1])])
            options = _options(described(info)[name])
            assert not options or value in options or str(value).endswith(".safetensors"), (key, value)


def _options(spec: Any) -> list[Any]:
    """What can be chosen; empty for an input that isn't a choice."""
    options = spec[0] if isinstance(spec[0], list) else spec[1].get("options", []) if len(spec) > 1 else []
    return [option["key"] if isinstance(option, dict) else option for option in options]


@pytest.mark.host
@pytest.mark.parametrize("file", [file for file in EXAMPLES if file.stem not in LARGE], ids=lambda file: file.stem)
def test_an_example_runs(file: Path, server: LiveServer) -> None:
    """As the editor would queue it, on the real server: it gives a picture, and the model ran fused."""
    prompt = api_form(json.loads(file.read_text()), server.get("/object_info"))
    for node in prompt.values():
        node["inputs"] |= SMALL.get(node["class_type"], {})
        if node["class_type"] == "CheckpointLoaderSimple":
            node["inputs"]["ckpt_name"] = SDXL.get(file.stem, "tiny-sd15.safetensors")
    name = "Segmind_Vega" if file.stem in SDXL else "SD15"
    before = _calls(server, name)
    images = server.run(prompt)
    assert images and all(image.startswith(b"\x89PNG") for image in images)
    if file.stem == "benchmark":
        assert not _calls(server, name) - before, "it left something behind"
        return
    after = _calls(server, name)
    since = after - before if after > before else after  # the same or less: another checkpoint had taken its memory
    assert since["fused"] and not since["eager"], since


def _calls(server: LiveServer, name: str) -> Counter[str]:
    """Calls of this diffusion model by path so far."""
    modules = server.get("/fast_compile/report")["modules"]
    return sum((Counter(module["calls"]) for module in modules if module["name"] == name), Counter())


def _broken(workflow: dict[str, Any], what: str) -> None:
    if what == "type":
        workflow["links"][0][5] = "CLIP"
    elif what == "end":
        workflow["nodes"][1]["inputs"][0]["link"] = None
    elif what == "last":
        workflow["last_link_id"] += 1
    elif what == "order":
        workflow["nodes"][0]["order"], workflow["nodes"][-1]["order"] = (
            workflow["nodes"][-1]["order"],
            workflow["nodes"][0]["order"],
        )


@pytest.mark.parametrize("what", ["type", "end", "last", "order"])
def test_the_check_finds_what_is_wrong(what: str) -> None:
    """Each kind of damage is noticed."""
    workflow = json.loads(EXAMPLES[0].read_text())
    _broken(workflow, what)
    with pytest.raises(AssertionError):
        check(workflow)
