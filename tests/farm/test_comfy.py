"""A worker's ComfyUI as a process: what is taken from it, how its failures are told apart, and that it never outlives
who started it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sfast_core.farm import comfy, leash
from sfast_core.farm.comfy import Comfy, Failed, Refused
from sfast_core.farm.worker import SETTINGS, Worker, texts

FAKE = Path(__file__).parent / "fake_comfyui" / "main.py"
COMMAND = [sys.executable, str(leash.__file__), str(FAKE)]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Comfy]:
    found = Comfy(COMMAND, tmp_path_factory.mktemp("comfy"))
    found.wait(60)
    yield found
    found.stop()
    assert not found.is_alive()


def test_files_are_taken_once_and_again(running: Comfy, make_prompt: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comfy, "_FORGETS_S", 0.0)
    extra = {"extra_pnginfo": {"workflow": {"nodes": [1]}}}
    (file,) = running.run(make_prompt(1), extra, 60)
    assert (
        file[:3] == ("7", 0, ".png")
        and b'"workflow": {"nodes": [1]}' in file[3]
        and list((running.folder / "output").iterdir()) == []
    )
    assert running.run(make_prompt(1), extra, 60) == [file], "though ComfyUI remembers that it has saved it"
    assert running.run(make_prompt(2), extra, 60) != [file]


def test_failures_are_told_apart(running: Comfy, make_prompt: Any) -> None:
    def run(kind: str, limit_s: float = 60, **inputs: Any) -> None:
        running.run({"0": {"class_type": kind, "inputs": inputs}, **make_prompt()}, {}, limit_s)

    with pytest.raises(Refused, match="Cannot execute; node 0 .*not installed"):
        run("NoSuchNode")
    with pytest.raises(Refused, match="saves nothing"):
        running.run({"1": {"class_type": "Sleep", "inputs": {"seconds": 0}}}, {}, 60)
    with pytest.raises(Refused, match="outside of its output folder"):
        running.run({"1": {"class_type": "Escape"}}, {}, 60)
    with pytest.raises(Failed, match=r"node 0 \(Fail\) failed: RuntimeError: no such luck"):
        run("Fail")
    with pytest.raises(Failed, match="longer than"):
        run("Sleep", 0.1, seconds=0.4)
    assert running.is_alive()


def test_a_crash_and_a_start_that_fails(tmp_path: Path, make_prompt: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the worker tells them, with the log."""
    settings = {"python": sys.executable, "main": str(FAKE), "options": [], "packs": {}, "folder": str(tmp_path)}
    monkeypatch.setenv(SETTINGS, json.dumps(settings))
    worker = Worker("w1", *texts())
    assert worker.start()["device"] == "fake" and worker.look()["alive"]
    assert (tmp_path / "w1" / "custom_nodes" / "farm_repeatable.py").read_text("utf-8") == texts()[1]
    done = worker.run(make_prompt(), {}, 60)
    assert done["kind"] == "done" and len(done["files"]) == 1 and done["seconds"] > 0
    crashed = worker.run({"0": {"class_type": "Crash"}, **make_prompt()}, {}, 60)
    assert (crashed["kind"], crashed["reason"]) == ("ended", "ComfyUI ended with 11") and "about to crash" in crashed[
        "log"
    ]
    assert not worker.look()["alive"]
    worker.stop()
    monkeypatch.setenv(SETTINGS, json.dumps({**settings, "options": ["--broken"]}))
    broken = Worker("w2", *texts()).start()
    assert broken["error"].startswith("ComfyUI didn't start") and "a node pack is broken" in broken["log"]


STARTED = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from comfy import Comfy
started = Comfy(sys.argv[2:5], Path(sys.argv[5]))
started.wait(60)
print(started.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_it_ends_with_who_started_it(tmp_path: Path) -> None:
    code = [sys.executable, "-c", STARTED, str(Path(comfy.__file__).parent), *COMMAND, str(tmp_path)]
    with subprocess.Popen(code, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        os.kill(pid, 0)
        os.kill(starter.pid, signal.SIGKILL)
    for _ in range(200):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        # nobody reaps it in a container
        if Path(f"/proc/{pid}/stat").exists() and Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z":
            return
        time.sleep(0.05)
    pytest.fail("it is still there")


def test_links_of_packs(tmp_path: Path) -> None:
    """A pack that isn't installed in ComfyUI is given to it by a path of its own."""
    pack = tmp_path / "pack"
    pack.mkdir()
    started = Comfy(COMMAND, tmp_path / "w", packs={"fast-compile": str(pack)})
    started.stop()
    assert (tmp_path / "w" / "custom_nodes" / "fast-compile").resolve() == pack
    assert json.loads((tmp_path / "w" / "paths.yaml").read_text())["farm"]["custom_nodes"] == "custom_nodes"
