"""The queue on disk: nothing that was acknowledged is lost, and nothing is done twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sfast_core.farm.errors import FarmError
from sfast_core.farm.shown import overview, timings
from sfast_core.farm.store import CRASHES, Store

ROOT = Path(__file__).resolve().parents[2]


def counts(store: Store) -> dict[str, int]:
    return {state: n for state, n in overview(store, 0.0)["jobs"].items() if n}


def test_a_job_from_submission_to_its_files(store: Store, make_prompt: Any, tmp_path: Path) -> None:
    submitted = store.submit("fox", make_prompt(), [3, 4], tmp_path, 1.0, {"extra_pnginfo": {"workflow": {}}})
    assert len(submitted.queued) == 2 and [job.id for job in store.waiting()] == submitted.queued
    task = store.lease(submitted.queued[0], "w1", 100.0)
    assert (
        task is not None
        and task.prompt == make_prompt(3)
        and list(task.prompt) == list(make_prompt())
        and task.extra["extra_pnginfo"]
    )
    assert task.name.startswith("fox_3_") and task.needs.models == ("a.safetensors",)
    assert store.lease(task.id, "w2", 100.0) is None, "one worker has it"
    assert store.complete(task.lease, ["x.png"], 2.5, True, 9.0) and counts(store) == {"waiting": 1, "done": 1}
    assert not store.complete(task.lease, ["y.png"], 1.0, True, 9.0), "the word of who holds no lease"
    (timing,) = timings(store)
    assert (
        timing["seconds"] == 2.5 and timing["cold"] == 1 and json.loads(timing["needs"])["models"] == ["a.safetensors"]
    )


def test_submitting_again_queues_what_is_missing(store: Store, make_prompt: Any, tmp_path: Path) -> None:
    first = store.submit("fox", make_prompt(), [0, 1, 2, 3], tmp_path, 1.0)
    done, gone, ill = (store.lease(job, "w", 9.0) for job in first.queued[:3])
    assert done and gone and ill
    (tmp_path / "there.png").touch()
    (
        store.complete(done.lease, ["there.png"], 1.0, False, 2.0),
        store.complete(gone.lease, ["gone.png"], 1.0, False, 2.0),
    )
    store.set_aside(ill.lease, "no such node", 2.0)
    again = store.submit("fox", dict(reversed(make_prompt().items())), [0, 1, 2, 3], tmp_path, 5.0)
    assert (again.queued, again.known, again.there) == (first.queued[1:3], 1, 1) and counts(store) == {
        "waiting": 3,
        "done": 1,
    }
    elsewhere = store.submit("fox", make_prompt(), [0], tmp_path / "b", 5.0)
    assert len(elsewhere.queued) == 1, "another folder is another result"
    assert store.submit("fox", make_prompt(seed=0), [None], tmp_path, 6.0).there == 1, "its own seed is the seed"


def test_a_job_that_crashes_its_workers_is_set_aside_with_its_log(
    store: Store, make_prompt: Any, tmp_path: Path
) -> None:
    (job,) = store.submit("fox", make_prompt(), [1], tmp_path, 1.0).queued
    for _ in range(5):  # a machine that went away is not the job's doing
        task = store.lease(job, "w", 9.0)
        assert task and store.give_back(task.lease, "the machine is gone", 2.0, counts=False) == "waiting"
    for crash in range(CRASHES):
        task = store.lease(job, "w", 9.0)
        assert task is not None
        state = store.give_back(task.lease, "ended with -9", 2.0, log=f"line {crash}", pause_s=5.0)
        assert state == ("aside" if crash == CRASHES - 1 else "waiting")
    (aside,) = overview(store, 3.0)["aside"]
    assert (aside["reason"], aside["log"]) == ("ended with -9", "line 2") and store.give_back(
        task.lease, "", 3.0
    ) is None


def test_seeds_as_large_as_comfyui_takes(store: Store, make_prompt: Any, tmp_path: Path) -> None:
    (job,) = store.submit("fox", make_prompt(), [2**64 - 1], tmp_path, 1.0).queued
    task = store.lease(job, "w", 9.0)
    assert task and task.prompt["5"]["inputs"]["seed"] == 2**64 - 1


KILLED = """
import os, signal, sys
from pathlib import Path
from sfast_core.farm.store import Store
store = Store(Path(sys.argv[1]))
jobs = store.submit("fox", {"1": {"class_type": "K", "inputs": {"seed": 1}}}, range(50), Path("/out"), 1.0).queued
for job in jobs[:20]:
    task = store.lease(job, "w", 9.0)
    if job % 2:
        store.complete(task.lease, [], 1.0, False, 2.0)
    print(job, flush=True)
store._connection.execute("BEGIN IMMEDIATE")
store._connection.execute("UPDATE jobs SET state = 'done'")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_what_was_acknowledged_survives_a_kill(tmp_path: Path) -> None:
    """In the middle of a change, which is as if it had not begun; what ran waits again."""
    path = tmp_path / "queue.sqlite"
    # Without the package's __init__, which imports torch.
    code = (
        "import sys, types; package = types.ModuleType('sfast_core'); package.__path__ = ['sfast_core']; sys.modules['sfast_core'] = package\n"
        + KILLED
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGKILL and len(done.stdout.split()) == 20, done.stderr
    store = Store(path)
    assert counts(store) == {"waiting": 30, "running": 10, "done": 10}
    assert store.reclaim() == 10 and counts(store) == {"waiting": 40, "done": 10} and len(store.waiting()) == 40
    store.close()


def test_a_full_disk_is_an_error_of_the_call_and_loses_nothing(store: Store, make_prompt: Any, tmp_path: Path) -> None:
    (job,) = store.submit("fox", make_prompt(), [1], tmp_path, 1.0).queued
    task = store.lease(job, "w", 9.0)
    pages = store.query("PRAGMA page_count")[0]["page_count"]
    store.query(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(FarmError, match="full"):
        store.submit("many", make_prompt(), range(5000), tmp_path, 2.0)
    assert counts(store) == {"running": 1}
    store.query("PRAGMA max_page_count = 1000000")
    assert len(store.submit("many", make_prompt(), range(2, 500), tmp_path, 2.0).queued) == 498
    assert task and store.complete(task.lease, [], 1.0, False, 3.0) and counts(store) == {"waiting": 498, "done": 1}


def test_a_queue_of_another_version_is_not_touched(store: Store) -> None:
    store.query("PRAGMA user_version = 99")
    with pytest.raises(FarmError, match="another version"):
        Store(store.path)
