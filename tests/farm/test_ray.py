"""A whole farm on Ray, with a stand-in for ComfyUI: each picture once and with the right bytes, whoever is killed."""

from __future__ import annotations

import hashlib
import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sfast_core.farm import workflow
from tests.farm.live_farm import LiveFarm, is_running

pytest.importorskip("ray", reason='needs Ray: pip install "ray[default]"')
pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveFarm]:
    made = LiveFarm(tmp_path_factory.mktemp("farm") / "home", 2)
    yield made
    made.stop()


def expected(prompt: dict[str, Any]) -> bytes:
    """What the stand-in makes of a prompt, on any machine."""
    text = json.dumps(prompt).encode()
    return b"picture " + hashlib.sha256(text).hexdigest().encode() + text + b"{}"


def check(folder: Path, prompts: list[dict[str, Any]], seeds: range) -> None:
    """Each picture once, and right."""
    wanted = sorted(expected(workflow.with_seed(prompt, seed)) for prompt in prompts for seed in seeds)
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert sorted(path.read_bytes() for path in files) == wanted and all(path.suffix == ".png" for path in files)


def test_from_the_command_line(farm: LiveFarm, make_prompt: Any, tmp_path: Path) -> None:
    farm.ready()
    file = tmp_path / "fox.json"
    file.write_text(json.dumps(make_prompt()))
    said = farm.call("submit", str(file), "--seeds", "0-9", "--out", "cli", "--wait")
    assert "10 queued" in said and "10 of 10" in said
    check(farm.home / "output" / "cli", [make_prompt()], range(10))
    assert "10 are done already" in farm.call("submit", str(file), "--seeds", "0-9", "--out", "cli", "--wait")
    said = farm.call("status")
    assert "jobs: 10 done" in said and "workers: 2" in said and "Ray's dashboard" in said
    assert json.loads(farm.call("status", "--json"))["jobs"]["done"] == 10


def test_a_job_that_crashes_comfyui_is_set_aside(farm: LiveFarm, make_prompt: Any) -> None:
    farm.client.submit("bad", {"0": {"class_type": "Crash"}, **make_prompt()}, "1", "bad")
    farm.client.submit("wrong", {"0": {"class_type": "NoSuchNode"}, **make_prompt()}, "1", "bad")
    farm.client.submit("good", make_prompt(), "0-4", "good")
    status, _ = farm.finish(200)
    assert status["jobs"]["aside"] == 2
    reasons = {aside["name"].split("_")[0]: aside for aside in status["aside"]}
    assert reasons["bad"]["reason"] == "ComfyUI ended with 11" and "about to crash" in reasons["bad"]["log"]
    assert "not installed" in reasons["wrong"]["reason"]
    check(farm.home / "output" / "good", [make_prompt()], range(5))


def prompts_of(make_prompt: Any, seconds: float) -> list[dict[str, Any]]:
    """Of several models, LoRAs and sizes; each takes a while."""
    kinds = [
        ("a.safetensors", None, 64),
        ("a.safetensors", "l.safetensors", 64),
        ("b.safetensors", None, 64),
        ("b.safetensors", None, 128),
    ]
    return [{"0": {"class_type": "Sleep", "inputs": {"seconds": seconds}}, **make_prompt(1, *kind)} for kind in kinds]


def test_kills_of_workers_and_of_the_head(farm: LiveFarm, make_prompt: Any) -> None:
    prompts = prompts_of(make_prompt, 0.5)
    for number, prompt in enumerate(prompts):
        farm.client.submit(f"w{number}", prompt, "0-9", "kills")
    time.sleep(3)
    pids = farm.kill_head()
    for _ in range(100):
        if not any(map(is_running, pids)):
            break
        time.sleep(0.2)
    assert pids and not any(map(is_running, pids)), "workers don't outlive the head"
    farm.start()
    farm.ready()
    status, killed = farm.finish(300, kill_every_s=4, chance=random.Random(2))
    assert status["jobs"]["done"] >= 40 and killed >= 2
    check(farm.home / "output" / "kills", prompts, range(10))


@pytest.mark.slow
def test_500_jobs_on_8_workers_with_a_kill_every_20_seconds(tmp_path: Path, make_prompt: Any) -> None:
    prompts = prompts_of(make_prompt, 4.0)
    farm = LiveFarm(tmp_path / "home", 8)
    try:
        for number, prompt in enumerate(prompts):
            farm.client.submit(f"w{number}", prompt, "0-124", str(number))
        status, killed = farm.finish(3000, kill_every_s=20, chance=random.Random(3))
        assert status["jobs"] == {"waiting": 0, "running": 0, "done": 500, "aside": 0} and killed >= 8
        check(farm.home / "output", prompts, range(125))
        print(f"500 jobs, {killed} workers killed")
    finally:
        farm.stop()
