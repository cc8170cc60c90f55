"""What the passes make of each model family: as many places of each as the page says."""

from __future__ import annotations

import csv
import os
import subprocess
from pathlib import Path

import pytest

from benchmarks.comfy import version
from benchmarks.families import Row, read
from benchmarks.family_models import FAMILIES

ROOT = Path(__file__).resolve().parents[3]
PUBLISHED = ROOT / "docs" / "measured" / "families.csv"
SECONDS = 3600


@pytest.fixture(scope="module")
def measured(
    comfyui: Path, comfyui_python: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> dict[str, Row]:
    """The rows of the families that were selected, by their names."""
    with open(PUBLISHED, newline="", encoding="utf-8") as file:
        theirs = next(csv.DictReader(file))["ComfyUI"]
    if version(comfyui) != theirs:
        pytest.skip(f"the page is of ComfyUI {theirs}")
    chosen = [
        item.callspec.params["name"] for item in request.session.items if getattr(item, "function", None) is test_family
    ]
    folder = tmp_path_factory.mktemp("families")
    command = [comfyui_python, "-m", "benchmarks.families", "--models", ";".join(chosen), "--out", str(folder)]
    environment = {**os.environ, "COMFYUI_PATH": str(comfyui), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return {row.model: row for row in read(folder / "families.csv")}


@pytest.mark.host
@pytest.mark.parametrize("name", FAMILIES)
def test_family(name: str, measured: dict[str, Row]) -> None:
    """It becomes what it was when the page was made, and is as exact."""
    (theirs,) = [row for row in read(PUBLISHED) if row.model == name]
    mine = measured[name]
    assert (mine.status, mine.why, mine.calls, mine.left, mine.passes) == (
        theirs.status,
        theirs.why,
        theirs.calls,
        theirs.left,
        theirs.passes,
    )
    assert mine.error <= 1.5 * mine.eager_error
