"""The head: each picture once and right, whatever happens to workers, disks and itself."""

from __future__ import annotations

import errno
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sfast_core.farm import head as head_module
from sfast_core.farm import results
from sfast_core.farm.errors import FarmError
from sfast_core.farm.fleet import Slot
from sfast_core.farm.head import Head
from sfast_core.farm.store import Store
from tests.farm.pretend_fleet import PretendFleet


class Farm:
    """A head over a pretended fleet, with a clock of its own."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self.folder, self.now, self.said = folder, 1000.0, list[str]()
        self.begin(workers)

    def begin(self, workers: int = 2) -> None:
        self.fleet = PretendFleet(workers)
        self.store = Store(self.folder / "queue.sqlite")
        self.store.query("PRAGMA synchronous=OFF")  # no power fails here
        self.head = Head(
            self.store, self.fleet, self.folder / "out", self.said.append, limit_s=100.0, clock=lambda: self.now
        )

    def tick(self, seconds: float = 1.0) -> None:
        self.now += seconds
        self.head.tick(0.0)
        while len(self.head._writing):
            time.sleep(0.001)
            self.head.tick(0.0)

    def ready(self) -> None:
        self.tick()
        self.fleet.ready()
        self.tick()

    def counts(self) -> dict[str, int]:
        return {state: n for state, n in self.head.status()["jobs"].items() if n}

    def files(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (self.folder / "out").rglob("*") if path.is_file()}


@pytest.fixture
def farm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Farm]:
    monkeypatch.setattr(head_module.time, "sleep", lambda seconds: None)
    made = Farm(tmp_path)
    yield made
    made.store.close()


def test_jobs_become_files(farm: Farm, make_prompt: Any) -> None:
    farm.ready()
    submitted = farm.head.submit("fox.json", make_prompt(), [1, 2, 3], "a")
    farm.tick()
    assert len(farm.fleet.given) == 2 and farm.counts() == {"waiting": 1, "running": 2}
    while farm.fleet.given:
        for worker in list(farm.fleet.given):
            farm.fleet.finish(worker)
        farm.tick()
        farm.tick()
    assert farm.counts() == {"done": 3}
    assert sorted(json.loads(data)["5"]["inputs"]["seed"] for data in farm.files().values()) == [1, 2, 3]
    status = farm.head.status(submitted.batch)
    assert status["per_minute"] == 3 and [worker["state"] for worker in status["workers"]] == ["free", "free"]
    assert sum(worker["done"] for worker in status["workers"]) == 3


def test_what_cannot_be_queued(farm: Farm, make_prompt: Any) -> None:
    prompt = make_prompt()
    del prompt["5"]["inputs"]["seed"]
    with pytest.raises(FarmError, match="seed or noise_seed"):
        farm.head.submit("fox.json", prompt, [1], ".")
    assert len(farm.head.submit("fox.json", prompt, None, ".").queued) == 1
    with pytest.raises(FarmError, match="stay inside"):
        farm.head.submit("fox.json", make_prompt(), [1], "../elsewhere")
    with pytest.raises(FarmError, match=r"Export \(API\)"):
        farm.head.submit("fox.json", {"nodes": []}, None, ".")


def test_a_worker_that_ends_is_replaced_and_its_job_runs_elsewhere(farm: Farm, make_prompt: Any) -> None:
    farm.ready()
    farm.head.submit("fox", make_prompt(), [1], ".")
    farm.tick()
    (worker,) = farm.fleet.given
    farm.fleet.lose(worker)
    farm.tick()
    farm.tick()
    (other,) = farm.fleet.given
    assert other != worker and farm.fleet.finish(other).prompt["5"]["inputs"]["seed"] == 1
    farm.tick()
    assert farm.counts() == {"done": 1} and len(farm.fleet.started) == 2 and worker not in farm.fleet.started


def test_a_job_that_ends_comfyui_three_times_is_set_aside_and_the_rest_goes_on(farm: Farm, make_prompt: Any) -> None:
    farm.ready()
    farm.head.submit("bad", make_prompt(model="bad.ckpt"), [1], ".")
    farm.head.submit("good", make_prompt(), range(5), ".")
    for _ in range(15):
        farm.tick()
        for worker, task in list(farm.fleet.given.items()):
            bad = task.name.startswith("bad")
            farm.fleet.finish(
                worker, **({"kind": "ended", "reason": "ComfyUI ended with -11", "log": "segfault"} if bad else {})
            )
        farm.tick()
        farm.fleet.ready()
    assert farm.counts() == {"done": 5, "aside": 1} and len(farm.fleet.ended) == 3
    (aside,) = farm.head.status()["aside"]
    assert aside["log"] == "segfault" and "set aside" in "".join(farm.said)


def test_a_workflow_that_comfyui_refuses_is_set_aside_at_once(farm: Farm, make_prompt: Any) -> None:
    farm.ready()
    farm.head.submit("bad", make_prompt(), [1], ".")
    farm.tick()
    farm.fleet.finish(*farm.fleet.given, kind="refused", reason="no such node")
    farm.tick()
    assert (
        farm.counts() == {"aside": 1}
        and farm.fleet.ended == []
        and farm.head.status()["aside"][0]["reason"] == "no such node"
    )


def test_workers_that_do_not_start_are_tried_less_and_less(farm: Farm) -> None:
    farm.fleet.places = [Slot("here", 0)]
    started = []
    for _ in range(100):
        farm.tick()
        for worker in list(farm.fleet.started):
            started.append(farm.now)
            farm.fleet.lose(worker, reason="a node pack is broken")
    assert 4 <= len(started) <= 8 and farm.head.status()["troubles"] == [
        {"machine": "here", "reason": "a node pack is broken"}
    ]


def test_a_worker_that_hangs_is_ended(farm: Farm, make_prompt: Any) -> None:
    farm.ready()
    farm.head.submit("fox", make_prompt(), [1], ".")
    farm.tick()
    (worker,) = farm.fleet.given
    farm.tick(131.0)
    assert farm.fleet.ended == [worker] and farm.counts() == {"waiting": 1}
    farm.tick()
    assert len(farm.fleet.given) == 1


@pytest.mark.parametrize("which", ["results", "queue"])
def test_a_full_disk_loses_nothing_and_computes_nothing_twice(
    farm: Farm, make_prompt: Any, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    farm.ready()
    farm.head.submit("fox", make_prompt(), range(6), ".")
    farm.tick()

    def full(*arguments: Any, **named: Any) -> None:
        raise (
            OSError(errno.ENOSPC, "No space left on device")
            if which == "results"
            else FarmError("database or disk is full")
        )

    where = (results, "write_whole") if which == "results" else (farm.store, "complete")
    monkeypatch.setattr(*where, full)
    computed = 0
    for _ in range(20):
        for worker in list(farm.fleet.given):
            farm.fleet.finish(worker)
            computed += 1
        farm.tick()
    assert computed <= 4, "each worker may begin another before it is known"
    assert farm.counts() == {"waiting": 6 - computed, "running": computed} and len(farm.files()) == (
        computed if which == "queue" else 0
    )
    assert "disk is full" in farm.head.status()["held"] and any("nothing is given out" in line for line in farm.said)
    monkeypatch.undo()
    for _ in range(10):
        farm.tick(6.0)
        for worker in list(farm.fleet.given):
            farm.fleet.finish(worker)
            computed += 1
    assert (
        farm.counts() == {"done": 6} and computed == 6 and len(farm.files()) == 6 and farm.head.status()["held"] is None
    )


def test_a_folder_that_cannot_be_written_concerns_its_jobs_alone(farm: Farm, make_prompt: Any) -> None:
    (farm.folder / "out").mkdir()
    (farm.folder / "out" / "a").touch()  # where its folder belongs
    farm.ready()
    farm.head.submit("fox", make_prompt(), [1], "a/b")
    farm.head.submit("hen", make_prompt(), range(3), "c")
    for _ in range(20):
        farm.tick(3.0)
        for worker in list(farm.fleet.given):
            farm.fleet.finish(worker)
    assert farm.counts() == {"done": 3, "aside": 1} and "can't be written" in farm.head.status()["aside"][0]["reason"]


def test_a_head_that_was_killed_begins_where_it_was(farm: Farm, make_prompt: Any) -> None:
    farm.ready()
    farm.head.submit("fox", make_prompt(), range(5), ".")
    farm.tick()
    farm.fleet.finish(next(iter(farm.fleet.given)))
    farm.tick()
    farm.store.close()
    farm.begin()
    assert farm.counts() == {"done": 1, "waiting": 4} and any("wait again" in line for line in farm.said)
    farm.ready()
    for _ in range(6):
        farm.tick()
        for worker in list(farm.fleet.given):
            farm.fleet.finish(worker)
    assert farm.counts() == {"done": 5} and len(farm.files()) == 5


def test_stopping(farm: Farm, make_prompt: Any) -> None:
    farm.ready()
    farm.head.submit("fox", make_prompt(), range(5), ".")
    farm.tick()
    farm.head.stop(at_once=False)
    for worker in list(farm.fleet.given):
        farm.fleet.finish(worker)
    farm.head.run()
    assert farm.fleet.closed and farm.counts() == {"done": 2, "waiting": 3}


def test_everything_at_once(farm: Farm, make_prompt: Any) -> None:
    """80 jobs on 8 workers that end and come back as they like, on a disk that is full at times: each picture once, and
    right.
    """
    chance = random.Random(1)
    farm.fleet.places = [Slot(f"machine{number // 4}", number) for number in range(8)]
    for number in range(4):
        farm.head.submit("fox", make_prompt(model=f"{number}.ckpt"), range(20), str(number))
    finished, rounds = 0, 0
    while farm.counts() != {"done": 80} and rounds < 2000:
        rounds += 1
        farm.tick()
        farm.fleet.ready()
        for worker in list(farm.fleet.started):
            if chance.random() < 0.02:
                farm.fleet.lose(worker, machine_gone=chance.random() < 0.5)
            elif worker in farm.fleet.given and chance.random() < 0.5:
                farm.fleet.finish(worker)
                finished += 1
    assert farm.counts() == {"done": 80} and finished == 80 and rounds > 15
    files = farm.files()
    assert len(files) == 80
    found = {
        (json.loads(data)["1"]["inputs"]["ckpt_name"], json.loads(data)["5"]["inputs"]["seed"])
        for data in files.values()
    }
    assert found == {(f"{number}.ckpt", seed) for number in range(4) for seed in range(20)}
