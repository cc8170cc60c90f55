"""The example workflows that ComfyUI offers in its template browser: consistent in themselves, and with the node in its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.comfy.workflow import check

EXAMPLES = sorted((Path(__file__).resolve().parents[3] / "example_workflows").glob("*.json"))


def test_there_are_examples() -> None:
    """Both main families."""
    assert {file.stem for file in EXAMPLES} >= {"sd15_txt2img", "sdxl_txt2img"}


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_an_example(file: Path) -> None:
    """Ids and links agree, and the node stands between a loader and a KSampler with its defaults."""
    workflow = json.loads(file.read_text())
    check(workflow)
    (node,) = [node for node in workflow["nodes"] if node["type"] == "ApplyFastCompile"]
    assert node["widgets_values"] == [True, True]
    kinds = {item["id"]: item["type"] for item in workflow["nodes"]}
    assert [kinds[link[1]] for link in workflow["links"] if link[3] == node["id"]] == ["CheckpointLoaderSimple"]
    assert [kinds[link[3]] for link in workflow["links"] if link[1] == node["id"]] == ["KSampler"]


def _broken(workflow: dict[str, Any], what: str) -> None:
    if what == "type":
        workflow["links"][0][5] = "CLIP"
    elif what == "end":
        workflow["nodes"][1]["inputs"][0]["link"] = None
    elif what == "last":
        workflow["last_link_id"] += 1
    elif what == "order":
        workflow["nodes"][0]["order"], workflow["nodes"][-1]["order"] = workflow["nodes"][-1]["order"], workflow["nodes"][0]["order"]


@pytest.mark.parametrize("what", ["type", "end", "last", "order"])
def test_the_check_finds_what_is_wrong(what: str) -> None:
    """Each kind of damage is noticed."""
    workflow = json.loads(EXAMPLES[0].read_text())
    _broken(workflow, what)
    with pytest.raises(AssertionError):
        check(workflow)
