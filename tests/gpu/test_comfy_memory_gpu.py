"""Each way in which ComfyUI manages memory, on a real GPU in a real ComfyUI: ``COMFYUI_PATH`` names its folder."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.in_comfy import run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.host,
    pytest.mark.skipif("COMFYUI_PATH" not in os.environ, reason="needs a ComfyUI: set COMFYUI_PATH to its folder"),
]
DRIVER = Path(__file__).resolve().parent / "comfy_memory.py"
MODES = ("normal", "lowvram", "novram", "tight", "dynamic", "dynamic tight")


@functools.cache
def _found(mode: str) -> dict[str, Any]:
    """What came of it, in a process of ComfyUI's own Python."""
    facts = run(DRIVER, mode)
    if missing := facts.get("missing"):
        pytest.skip(missing)
    return facts


@pytest.mark.parametrize("mode", MODES)
def test_the_pictures_are_the_plain_models(mode: str) -> None:
    """Up to rounding, with and without a LoRA, and the same bits again when it is gone."""
    found = _found(mode)
    assert max(found["distances"]) < 2e-2, found
    assert found["lora_acts"] > 5 * max(found["distances"]) and found["same_bits"], found
    assert found["graph_bytes_unloaded"] == 0


@pytest.mark.parametrize("mode", ["normal", "dynamic"])
def test_a_resident_model_is_replayed(mode: str) -> None:
    found = _found(mode)
    assert found["calls"].get("replayed", 0) > found["calls"].get("eager", 0) + found["calls"].get("fused", 0), found


@pytest.mark.parametrize("mode", ["novram", "tight"])
def test_a_model_that_lies_partly_elsewhere_streams(mode: str) -> None:
    """Replayed, also with a LoRA, which is computed on arrival."""
    found = _found(mode)
    assert max(found["resident"]) < 0.9 and found["streamed"] > 0, found
    assert found["calls"].get("replayed", 0) >= 12 and not found["calls"].get("eager"), found


def test_dynamic_vram_over_its_budget_streams() -> None:
    """Fused in each sampling, also with a LoRA: what the host unloads between two, and its pinned memory, is asked for
    again. By graphs in most; of pictures of four steps, between which all is unloaded, two show whether a third graph
    pays.
    """
    found = _found("dynamic tight")
    assert max(found["resident"]) < 1 and found["streamed"] > 0, found
    calls = found["calls"]
    assert calls.get("replayed", 0) >= 10 and calls["replayed"] + calls.get("fused", 0) >= 19, found
    assert not calls.get("eager"), found


def test_memory_is_where_it_was_after_ten_switches() -> None:
    """From the second on, when libraries have loaded their kernels: up to two of the driver's pages of 2 MB."""
    found = run(DRIVER, "switches")
    assert all(calls.get("replayed") and not calls.get("eager") for calls in found["calls"]), found
    free = found["free"]
    assert min(free[2:]) >= free[1] - 2 * 2**21, free
