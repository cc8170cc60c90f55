"""The accordion's and the tab's components in the webuis' real servers, by the events that a page would send."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.hosts.webui.live_webui import LiveWebui
from tests.hosts.webui.pictures import OFF, ON, assert_same, calls_of, fused, off_and_on

pytestmark = pytest.mark.host


def _events(webui: LiveWebui, elem_id: str | None, kind: str) -> list[tuple[int, set[str | None]]]:
    """The events of a component: the number to call each by, and the ids of what it changes."""
    config = webui.get("/config")
    names = {component["id"]: component["props"].get("elem_id") for component in config["components"]}
    found = []
    for index, dependency in enumerate(config["dependencies"]):
        triggers = [
            target if isinstance(target, list) else (target, dependency.get("trigger"))
            for target in dependency["targets"]
        ]
        of_the_page = (
            elem_id is None
            and dependency.get("trigger", kind) == kind
            and not [name for _, name in triggers if name != kind]
        )
        if of_the_page or any(names.get(identity) == elem_id and name == kind for identity, name in triggers):
            outputs = {names.get(output) for output in dependency["outputs"]}
            found.append((dependency.get("id", index), outputs))
    return found


def _press(webui: LiveWebui, index: int, *data: Any) -> list[Any]:
    answer: dict[str, list[Any]] = webui.post("/run/predict", {"data": data, "fn_index": index, "session_hash": "test"})
    return answer["data"]


@pytest.mark.parametrize("name", ["enabled", "vae", "text_encoder"])
def test_the_toggles_are_in_step(webui: LiveWebui, name: str) -> None:
    """What a person changes in one place reaches the two others and the settings file; a page that is loaded asks for
    it; a picture that is done renews the status line. What is pasted from infotext reaches nothing else.
    """
    places = {f"fast_compile_tab_{name}"} | {f"script_{tab}_fast_compile_{name}" for tab in ("txt2img", "img2img")}
    for place in places:
        ((index, outputs),) = (event for event in _events(webui, place, "input") if event[1] & places)
        assert not any(outputs & places for _, outputs in _events(webui, place, "change"))
        assert outputs == places - {place}
        for value in (True, False) if name == "enabled" else (False, True):
            assert _press(webui, index, value) == [value, value]
            assert json.loads(webui.settings.read_text())[f"fast_compile_{name}"] is value
    assert places <= {name for _, outputs in _events(webui, None, "load") for name in outputs}
    for tab in ("txt2img", "img2img"):
        assert any(
            f"script_{tab}_fast_compile_status" in outputs
            for _, outputs in _events(webui, f"generation_info_{tab}", "change")
        )


def test_the_tab(webui: LiveWebui) -> None:
    """Its report, and the button that frees memory."""
    webui.generate("txt2img", {}, ON)
    for button in ("fast_compile_tab_refresh", "fast_compile_tab_free"):
        ((index, _),) = _events(webui, button, "click")
        (text,) = _press(webui, index)
        assert "UNet" in text and "distance to eager" in text
    assert webui.post("/probe/look")["strided"] == 0 and fused(off_and_on(webui, {})[1]) == 3


def test_warming_up(webui: LiveWebui) -> None:
    """Each size is traced, so that its first picture isn't; nothing is saved and no last prompt forgotten.

    What isn't a size is named.
    """
    ((index, outputs),) = _events(webui, "fast_compile_tab_warm", "click")
    assert outputs == {"fast_compile_tab_warmed"}
    look = webui.post("/probe/look")
    webui.generate("txt2img", {}, ON)  # with other switches, a test before this one had another state
    off = webui.generate("txt2img", {"width": 128, "batch_size": 2}, OFF)
    parameters = webui.settings.parent / "params.txt"
    before, (calls, _) = parameters.read_bytes(), calls_of(webui)
    pictures = len(list(webui.settings.parent.rglob("*.png")))
    (text,) = _press(webui, index, "64x96\n128x64 x2", True, True, True, True, "exact")
    lines = text.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["128x64 x2", "64x96"], text  # the largest first
    assert all("traced in" in line and "no CUDA device" in line for line in lines), text
    assert parameters.read_bytes() == before and len(list(webui.settings.parent.rglob("*.png"))) == pictures
    assert calls_of(webui)[0] - calls == {"traced": 2, "fused": 2}
    calls, _ = calls_of(webui)
    assert_same(webui.generate("txt2img", {"width": 128, "batch_size": 2}, ON), off)
    assert calls_of(webui)[0] - calls == {"fused": 3}, "traced a second time"
    assert webui.post("/probe/look")["own_forward"] is look["own_forward"]
    (text,) = _press(webui, index, "128\n64x64", False, True, True, True, "exact")
    assert "line 1" in text and "WIDTHxHEIGHT" in text and text.startswith("64x64: "), (
        "the good one is captured all the same"
    )
