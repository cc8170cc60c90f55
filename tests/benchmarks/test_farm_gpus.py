"""The measured farm's jobs and what is made of its rows. The farm itself needs Ray and a ComfyUI (``COMFYUI_PATH``)."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from benchmarks import farm_gpus
from benchmarks.farm_gpus import Row


def test_every_kind_of_job_is_another_workflow_and_whole() -> None:
    kinds = farm_gpus.kinds("SD1.5", 20)
    assert len({name for name, _ in kinds}) == len(kinds) == 6
    assert len({str(prompt) for _, prompt in kinds}) == 6
    for _, prompt in kinds:
        links = [link for node in prompt.values() for link in node["inputs"].values() if isinstance(link, list)]
        assert links and {node for node, _ in links} <= prompt.keys()
        assert sum(node["class_type"] == "ApplyFastCompile" for node in prompt.values()) == 1


def test_the_table_says_what_was_missing_and_killed() -> None:
    rows = [Row(1, 8, seconds=4.0, per_minute=120, done=8), Row(2, 8, 1, 3.0, 2.0, 2.5, 192, 0.8, 8, other_files=3)]
    lines = farm_gpus.table(rows).splitlines()
    assert len({line.count("|") for line in lines}) == 1
    assert lines[2].endswith("| 120 | 1.000 | 0 |") and lines[3].endswith(
        "| 1 | 3.0 s | 2.0 s | 2.5 | 192 | 0.800 | 3 |"
    )


def test_without_a_comfyui_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("COMFYUI_PATH", raising=False)
    with pytest.raises(SystemExit):
        farm_gpus.main([])
    assert "--comfyui: got nothing, needs a ComfyUI's folder" in capsys.readouterr().err


@pytest.mark.host
@pytest.mark.skipif("COMFYUI_PATH" not in os.environ, reason="needs a ComfyUI: set COMFYUI_PATH to its folder")
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason='needs Ray: pip install "ray[default]"')
def test_a_farm_of_two_makes_what_one_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a worker killed in the middle."""
    monkeypatch.setenv("FAST_COMPILE_CPU", "1")
    python = os.environ.get("COMFYUI_PYTHON") or sys.executable
    asked = ["--gpus", "1,2", "--jobs", "6", "--steps", "1", "--warm-up", "1", "--model", "tiny", "--kill"]
    code = farm_gpus.main([*asked, "--python", python, "--out", str(tmp_path), "--", "--cpu"])
    said = capsys.readouterr().out
    assert code == 0 and "| 2 | 6 | 0 |" in said and "| 2 | 6 | 1 |" in said
