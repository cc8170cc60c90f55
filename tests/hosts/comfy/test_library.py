"""Runs the scenarios of ``scenarios/`` in a real ComfyUI used as a library: one process per file, one test per scenario."""

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
SECONDS = 900


def _scenarios() -> list[tuple[str, str]]:
    found = []
    for file in FILES:
        functions = [node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)]
        found += [(file.stem, name) for name in functions if name.startswith("scenario_")]
    return found


class _Runs:
    """What each file's process said, run once with the scenarios that were asked for."""

    def __init__(self, comfyui: Path, python: str, wanted: list[tuple[str, str]]) -> None:
        self._comfyui, self._python, self._wanted = comfyui, python, wanted
        self._outcomes: dict[str, dict[str, Any]] = {}

    def outcome(self, file: str, name: str) -> Any:
        if file not in self._outcomes:
            self._outcomes[file] = self._run(file)
        return self._outcomes[file].get(name) or {"failure": self._outcomes[file]["output"]}

    def _run(self, file: str) -> dict[str, Any]:
        names = [name for wanted, name in self._wanted if wanted == file]
        environment = {**os.environ, "COMFYUI_PATH": str(self._comfyui), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [self._python, str(HERE / "run_scenarios.py"), str(HERE / "scenarios" / f"{file}.py"), *names]
        done = subprocess.run(command, env=environment, cwd=HERE, capture_output=True, text=True, timeout=SECONDS, check=False)
        outcomes: dict[str, Any] = {"output": f"exit status {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"}
        for line in done.stdout.splitlines():
            if line.startswith('{"name": "scenario_'):
                outcome = json.loads(line)
                outcomes[outcome["name"]] = outcome
        return outcomes


@pytest.fixture(scope="session")
def runs(comfyui: Path, comfyui_python: str, request: pytest.FixtureRequest) -> _Runs:
    """The processes, which run no more than what was selected."""
    chosen = [item.callspec.params for item in request.session.items if getattr(item, "function", None) is test_scenario]
    return _Runs(comfyui, comfyui_python, [(params["file"], params["name"]) for params in chosen])


@pytest.mark.host
@pytest.mark.parametrize(("file", "name"), _scenarios(), ids=lambda value: value.removeprefix("scenario_"))
def test_scenario(file: str, name: str, runs: _Runs) -> None:
    """The scenario raises nothing."""
    failure = runs.outcome(file, name)["failure"]
    if failure:
        pytest.fail(failure, pytrace=False)
