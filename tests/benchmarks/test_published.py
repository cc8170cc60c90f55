"""Others' figures are shown as what they are, beside those that were measured here."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import published

COMFY = """model,allocator,variant,steps,sampling_s,gpu,torch,date
SDXL,cudaMallocAsync,eager,30,3.0,A GPU,2.11.0,2026-01-01
SDXL,cudaMallocAsync,ours,30,0.8,A GPU,2.11.0,2026-01-01
SDXL,native,ours,30,0.1,A GPU,2.11.0,2026-01-01
"""
CONTROLNET = """provider,ms,gpu,torch,date
compile,9.0,A GPU,2.11.0,2026-01-02
ours,8.0,A GPU,2.11.0,2026-01-02
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "comfy.csv").write_text(COMFY, "utf-8")
    (tmp_path / "controlnet.csv").write_text(CONTROLNET, "utf-8")
    return tmp_path


def test_steps_per_second(folder: Path) -> None:
    found = published.measured(folder)
    assert found["ours"] == pytest.approx({"SDXL": 37.5, "SD1.5 with a ControlNet": 125.0}) and found[
        "eager"
    ] == pytest.approx({"SDXL": 10.0})


def test_what_is_published_says_so_and_where(folder: Path) -> None:
    lines = published.table(folder).splitlines()
    theirs = next(line for line in lines if line.startswith("| stable-fast"))
    assert "[published](https://" in theirs and theirs.endswith("| 104.6 | 21.6 | 72.6 |")
    assert "| Fast Compile | measured, A GPU, PyTorch 2.11.0, 2026-01-01 and 2026-01-02 |  | 37.5 | 125.0 |" in lines
    assert all(row["source"].startswith("https://") for row in published.read(published.PUBLISHED))


def test_the_page_shows_the_newest() -> None:
    """No figure is left behind where comfy's or the ControlNet's table is newer."""
    shown = published.PUBLISHED.parent.parent / "docs" / "measured"
    assert (shown / "published.md").read_text("utf-8") == published.table(shown)
