"""Runs the scenarios of ``scenarios/`` in a real ComfyUI used as a library: all in one process,
one test per scenario.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
FILES = sorted((HERE / "scenarios").glob("*.py"))
SECONDS = 1800


def _scenarios() -> list[tuple[str, str]]:
    found = []
    for file in FILES:
        functions = [node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)]
        found += [(file.stem, name) for name in functions if name.startswith("scenario_")]
    return found


@pytest.fixture(scope="session")
def outcomes(comfyui: Path, comfyui_python: str, request: pytest.FixtureRequest) -> dict[tuple[str, str], Any]:
    """What became of every scenario that was selected, by file and name; under ``("", "")`` what the process said at
    its end.
    """
    chosen = [
        item.callspec.params for item in request.session.items if getattr(item, "function", None) is test_scenario
    ]
    wanted = [f"{HERE / 'scenarios' / params['file']}.py::{params['name']}" for params in chosen]
    environment = {**os.environ, "COMFYUI_PATH": str(comfyui), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [comfyui_python, str(HERE / "run_scenarios.py"), *wanted]
    done = subprocess.run(
        command, env=environment, cwd=HERE, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    found: dict[tuple[str, str], Any] = {}
    for line in done.stdout.splitlines():
        if line.startswith('{"file": '):
            outcome = json.loads(line)
            found[outcome["file"], outcome["name"] or ""] = outcome
    found["", ""] = {"failure": f"exit status {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"}
    return found


@pytest.mark.host
@pytest.mark.parametrize(("file", "name"), _scenarios(), ids=lambda value: value.removeprefix("scenario_"))
def test_scenario(file: str, name: str, outcomes: dict[tuple[str, str], Any]) -> None:
    """The scenario raises nothing."""
    outcome = outcomes.get((file, name)) or outcomes.get((file, "")) or outcomes["", ""]
    if outcome["failure"]:
        pytest.fail(outcome["failure"], pytrace=False)
