"""ComfyUI's two forms of a workflow: what the editor saves (format 0.4), and what ``POST /prompt`` takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

#: A choice that brings inputs of its own, named "choice.input".
_DYNAMIC = "COMFY_DYNAMICCOMBO_V3"
_WIDGETS = ("INT", "FLOAT", "STRING", "BOOLEAN", "COMBO", _DYNAMIC)
_LINK = ("id", "source", "output", "target", "input", "type")


def check(workflow: dict[str, Any]) -> None:
    """Raise an AssertionError where ids, links and slots don't agree with one another."""
    assert workflow["version"] == 0.4
    nodes = {node["id"]: node for node in workflow["nodes"]}
    links = {link[0]: dict(zip(_LINK, link, strict=True)) for link in workflow["links"]}
    assert len(nodes) == len(workflow["nodes"]) and max(nodes) == workflow["last_node_id"], "node ids"
    assert len(links) == len(workflow["links"]) and max(links) == workflow["last_link_id"], "link ids"
    assert sorted(node["order"] for node in nodes.values()) == list(range(len(nodes))), "the order of execution"
    for number, link in links.items():
        source, target = nodes[link["source"]], nodes[link["target"]]
        output, taken = source["outputs"][link["output"]], target["inputs"][link["input"]]
        assert number in output["links"] and taken["link"] == number, f"link {number} isn't known at both ends"
        assert output["type"] == link["type"] and taken["type"] in ("*", link["type"]), (
            f"link {number} joins {output['type']} with {taken['type']}"
        )
        assert source["order"] < target["order"], f"link {number} goes backwards"
    for node in nodes.values():
        used = [slot["link"] for slot in node["inputs"] if slot["link"] is not None]
        used += [number for slot in node["outputs"] for number in slot["links"]]
        assert set(used) <= set(links), f"node {node['id']} names links that aren't there"


def described(info: dict[str, Any]) -> dict[str, Any]:
    """The inputs of a node, or those that a choice brings, by name; without those that an editor doesn't show."""
    inputs = {**info.get("required", {}), **info.get("optional", {})}
    return {name: spec for name, spec in inputs.items() if not (len(spec) > 1 and spec[1].get("hidden"))}


def chosen(spec: Any, value: Any) -> dict[str, Any]:
    """What the choice of ``value`` brings: as a node's ``input``. Empty for inputs that bring nothing, and for a value
    that is no choice.
    """
    options = spec[1]["options"] if spec[0] == _DYNAMIC else []
    return next((dict(option["inputs"]) for option in options if option["key"] == value), {})


def _from_widgets(info: dict[str, Any], values: Iterator[Any], prefix: str = "") -> dict[str, Any]:
    inputs: dict[str, Any] = {}
    for name, spec in described(info).items():
        if isinstance(spec[0], list) or spec[0] in _WIDGETS:
            extra = spec[1] if len(spec) > 1 else {}
            value = inputs[prefix + name] = next(values, extra.get("default"))  # a workflow may be older than a widget
            if extra.get("control_after_generate") or extra.get("image_upload"):
                next(values)  # what the editor does with the seed afterwards, its button for uploading
            inputs |= _from_widgets(chosen(spec, value), values, f"{prefix}{name}.")
    return inputs


def api_form(workflow: dict[str, Any], object_info: dict[str, Any]) -> dict[str, Any]:
    """The workflow as the editor would queue it.

    Args:
        workflow: as the editor saved it.
        object_info: the server's description of its nodes, which says which inputs are widgets, and in what order.
    """
    sources = {link[0]: [str(link[1]), link[2]] for link in workflow["links"]}
    prompt = {}
    for node in workflow["nodes"]:
        linked = {slot["name"]: sources[slot["link"]] for slot in node["inputs"] if slot["link"] is not None}
        values = iter(node.get("widgets_values", []))
        inputs = _from_widgets(object_info[node["type"]]["input"], values)
        assert next(values, None) is None, f"the {node['type']} has more values than widgets"
        prompt[str(node["id"])] = {"class_type": node["type"], "inputs": {**inputs, **linked}}
    return prompt


def txt2img(checkpoint: str, node: dict[str, Any] | None = None, **sampler: Any) -> dict[str, Any]:
    """A small text-to-image prompt in the API's form, through ``Apply Fast Compile`` with the inputs ``node`` when that
    isn't None.
    """
    settings = {
        "seed": 1,
        "steps": 2,
        "cfg": 7.0,
        "sampler_name": "euler",
        "scheduler": "normal",
        "denoise": 1.0,
        **sampler,
    }
    prompt: dict[str, Any] = {
        "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": checkpoint}},
        "2": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["1", 1], "text": "a photo of a cat"}},
        "3": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["1", 1], "text": ""}},
        "4": {"class_type": "EmptyLatentImage", "inputs": {"width": 64, "height": 64, "batch_size": 1}},
        "5": {
            "class_type": "KSampler",
            "inputs": {
                "model": ["1", 0],
                "positive": ["2", 0],
                "negative": ["3", 0],
                "latent_image": ["4", 0],
                **settings,
            },
        },
        "6": {"class_type": "VAEDecode", "inputs": {"samples": ["5", 0], "vae": ["1", 2]}},
        "7": {"class_type": "SaveImage", "inputs": {"images": ["6", 0], "filename_prefix": "test"}},
    }
    if node is not None:
        prompt["8"] = {
            "class_type": "ApplyFastCompile",
            "inputs": {"model": ["1", 0], "enabled": True, "cuda_graphs": True, **node},
        }
        prompt["5"]["inputs"]["model"] = ["8", 0]
    return prompt
