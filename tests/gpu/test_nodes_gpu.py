"""Report, benchmark, warm-up and freeing memory with real CUDA graphs in a real ComfyUI: ``COMFYUI_PATH`` names its
folder.
"""

from __future__ import annotations

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
DRIVER = Path(__file__).resolve().parent / "comfy_nodes.py"


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """What the nodes said and did, in a process of ComfyUI's own Python."""
    return run(DRIVER)


def _graph_bytes(report: dict[str, Any]) -> list[int]:
    return [signature["graph_bytes"] for signature in report["signatures"]]


def test_a_warm_up_captures_each_size(found: dict[str, Any]) -> None:
    """And says the memory that each holds, which the report says too."""
    lines = found["warm_up"].splitlines()
    assert [line.partition(":")[0] for line in lines] == ["256x256", "256x320 x2"], lines
    assert all(re.fullmatch(r".*: captured in [\d.]+ s, \d+ MB", line) for line in lines), lines
    report = found["warmed"]
    assert (
        report["device"].startswith("cuda")
        and report["calls"] == {"traced": 2, "replayed": 2}
        and not report["reasons"]
    )
    assert [signature["captures"] for signature in report["signatures"]] == [1, 1] and min(_graph_bytes(report)) > 0
    assert report["graph_bytes"] == sum(_graph_bytes(report))


def test_after_it_a_picture_is_replayed_from_its_first_step(found: dict[str, Any]) -> None:
    """Nothing is traced or captured, and it is the plain model's picture up to rounding; a second warm-up finds nothing
    to do.
    """
    before, after = found["warmed"], found["sampled"]
    assert after["calls"] == {"traced": 2, "replayed": before["calls"]["replayed"] + 6}
    assert [signature["captures"] for signature in after["signatures"]] == [1, 1]
    assert found["distance"] < 2e-2, found["distance"]
    assert found["warm_up_again"].count("was captured already") == 2


def test_the_report(found: dict[str, Any]) -> None:
    """What the badge's details show, and a picture of it."""
    text = found["report"]
    for word in ("on cuda:0", "replayed", "2 traced", "fuse_attention", "captured 1x", "distance to eager", "gpu "):
        assert word in text, f"{word!r} isn't in\n{text}"
    assert len(re.findall(r"^    graph: \d+ MB$", text, re.MULTILINE)) == 2 and "ran as before" not in text, text
    assert found["report_picture"][0::3] == [1, 3] and found["report_contrast"] > 0.01


def test_the_benchmark(found: dict[str, Any]) -> None:
    """It replays, is faster, finds no difference beyond rounding, and leaves the model's own state as it was."""
    text = found["benchmark"]
    speedup = float(re.search(r"^([\d.]+) x eager", text, re.MULTILINE)[1])  # type: ignore[index]
    assert speedup > 1 and "no NVIDIA GPU" not in text, text
    calls = re.search(r"^calls: (.*)$", text, re.MULTILINE)[1]  # type: ignore[index]
    assert "replayed" in calls and "eager" not in calls, text
    assert int(re.search(r"^graphs: (\d+) MB", text, re.MULTILINE)[1]) > 0, text  # type: ignore[index]
    assert float(re.search(r"relative distance ([\d.e+-]+)", text)[1]) < 2e-2, text  # type: ignore[index]
    assert found["benchmark_picture"][0::3] == [1, 3]
    assert found["after_benchmark"]["calls"]["traced"] == found["sampled"]["calls"]["traced"], (
        "it has traced in the user's own state"
    )


def test_memory_is_given_back_and_taken_again(found: dict[str, Any]) -> None:
    """As many bytes as the report counted; the next picture captures again, and has the very bits that it had."""
    held = found["before_freeing"]["graph_bytes"]
    assert held > 0 and f"({held:,} bytes)" in found["freed"], found["freed"]
    assert found["after_freeing"]["graph_bytes"] == 0 and found["free_after"] > found["free_before"]
    assert found["same_bits"] and found["captured_again"]["graph_bytes"] > 0
    assert found["captured_again"]["calls"]["traced"] == found["before_freeing"]["calls"]["traced"]


def test_what_the_badge_is_told(found: dict[str, Any]) -> None:
    """Tracing and how far it is, capturing with its step, fast with steps a second and the graphs' memory; then how
    many times faster, measured.
    """
    own = [event for event in found["events"] if "8" in event.get("nodes", ())]
    states = list(dict.fromkeys(event["state"] for event in own))
    assert [state for state in states if state != "fused"] == ["tracing", "capturing", "fast"], states
    assert any(0 < event["done"] <= 1 for event in own if event["state"] == "tracing")
    assert any((event["step"], event["steps"]) == (1, 1) for event in own if event["state"] == "capturing"), own
    sums = [event for event in own if event["rate"]]
    assert sums and all(event["state"] == "fast" and event["rate"] > 0 and event["graph_bytes"] > 0 for event in sums)
    measured = [event for event in found["events"] if event.get("state") == "measured"]
    assert len(measured) == 1 and measured[0]["model"] == sums[0]["model"] and measured[0]["times"] > 1
    assert "float16" in measured[0]["inputs"] and measured[0]["inputs"] in {event["inputs"] for event in sums}, (
        "it isn't known whose they are"
    )
    assert any(event.get("graphs") and not any(event["graphs"].values()) for event in found["events"]), (
        "freeing wasn't told"
    )
