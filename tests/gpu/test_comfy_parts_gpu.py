"""VAE, text encoders and ControlNet on a real GPU in a real ComfyUI, in ways in which it manages memory:
``COMFYUI_PATH`` names its folder.
"""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.in_comfy import run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.host,
    pytest.mark.skipif("COMFYUI_PATH" not in os.environ, reason="needs a ComfyUI: set COMFYUI_PATH to its folder"),
]
DRIVER = Path(__file__).resolve().parent / "comfy_parts.py"
MODES = ("normal", "lowvram", "dynamic")
PARTS = ("vae", "clip", "t5", "controlnet")
BOUNDS = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 4e-2}  #: of relative L2 distances, by what a part's inputs are
TEXT_ENCODERS = ("clip", "t5")


@functools.cache
def _all(mode: str) -> dict[str, Any]:
    """What came of every part, in a process of ComfyUI's own Python."""
    return run(DRIVER, mode)


def _found(mode: str, part: str) -> dict[str, Any]:
    facts = _all(mode)
    if missing := facts.get("missing"):
        pytest.skip(missing)
    return dict(facts[part])


def _bound(found: dict[str, Any]) -> float:
    """What the coarsest dtype of its compiled modules explains; float32's where all ran as they were."""
    inputs = " ".join(text for module in found["modules"].values() for text in module["inputs"])
    return max(BOUNDS[dtype] for dtype in {"float32", *re.findall(r"b?float(?:16|32)", inputs)})


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("mode", MODES)
def test_the_results_are_the_plain_parts(mode: str, part: str) -> None:
    """Up to rounding, whatever is changed, which changes them; the same bits when something comes again; nothing is
    left in the end.
    """
    found = _found(mode, part)
    distances = [distance for each in found["distances"].values() for distance in each]
    assert all(distance < _bound(found) for distance in distances), found
    assert all(change > 5 * max(distances) for change in found["changes"].values()), found
    assert all(found["same_bits"].values()), found
    assert found["graph_bytes_unloaded"] == 0


@pytest.mark.parametrize("part", PARTS)
def test_bits_are_the_same_from_the_first_call_on(part: str) -> None:
    found = _found("normal", part)
    calls = {name: module["calls"] for name, module in found["modules"].items()}
    assert not any(distance for each in found["first_to_last"].values() for distance in each), (
        f"{found['first_to_last']}, {calls}"
    )


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("mode", ["normal", "dynamic"])
def test_a_resident_part_is_replayed(mode: str, part: str) -> None:
    """Each module of it; apart from the first call of a signature always, where nothing moves."""
    found = _found(mode, part)
    assert len(found["modules"]) == (1 if part in TEXT_ENCODERS else 2), found
    for module in found["modules"].values():
        calls = module["calls"]
        assert module["device"].startswith("cuda") and module["graph_bytes"] > 0, found
        assert calls.get("replayed", 0) > calls.get("eager", 0) + calls.get("fused", 0), found
        assert mode != "normal" or not (calls.get("eager") or module["reasons"] or module["no_graph"]), found


@pytest.mark.parametrize("part", PARTS)
def test_what_low_memory_keeps_from_being_replayed_says_why(part: str) -> None:
    """There ComfyUI runs text encoders on the CPU; the rest is resident where it fits."""
    found = _found("lowvram", part)
    for module in found["modules"].values():
        calls, reasons = module["calls"], module["reasons"]
        assert sum(calls.values()) and calls.get("eager", 0) == sum(reasons.values()), found
        assert calls.get("replayed") or reasons or module["no_graph"], found
        assert part not in TEXT_ENCODERS or all("isn't a CUDA device" in reason for reason in reasons), found
