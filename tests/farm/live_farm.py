"""A whole farm in processes of its own, as a user starts it, and ways to be unkind to it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sfast_core.farm.__main__ import main
from sfast_core.farm.client import Client
from sfast_core.farm.errors import FarmError

ROOT = Path(__file__).resolve().parents[2]
FAKE = Path(__file__).parent / "fake_comfyui"


class LiveFarm:
    """``python -m sfast_core.farm`` over the folder ``home``.

    Args:
        home: its folder.
        workers: how many.
        comfyui: that they run.
        python: that runs it.
        options: of ComfyUI.
        environment: variables besides this process's.
    """

    def __init__(
        self,
        home: Path,
        workers: int,
        comfyui: Path = FAKE,
        python: str = sys.executable,
        options: Sequence[str] = (),
        environment: dict[str, str] | None = None,
    ) -> None:
        self.home, self.workers = home, workers
        self._machine = [
            "--workers",
            str(workers),
            "--comfyui",
            str(comfyui),
            "--comfyui-python",
            python,
            "--",
            *options,
        ]
        self._environment = {
            **os.environ,
            **(environment or {}),
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }
        self.start()

    def start(self, seconds: float = 400) -> None:
        """Until it answers."""
        (self.home / "head.json").unlink(missing_ok=True)
        self.log = (self.home.parent / "farm.log").open("a")
        command = [
            sys.executable,
            "-m",
            "sfast_core.farm",
            "start",
            "--home",
            str(self.home),
            "--port",
            "0",
            "--dashboard-port",
            "0",
            *self._machine,
        ]
        self.head = subprocess.Popen(
            command, cwd=ROOT, env=self._environment, stdout=self.log, stderr=subprocess.STDOUT
        )
        end = time.monotonic() + seconds
        while not (self.home / "head.json").exists():
            assert self.head.poll() is None and time.monotonic() < end, self.said()
            time.sleep(0.2)
        address = json.loads((self.home / "head.json").read_text())["address"]
        self.client = Client(address, (self.home / "token").read_text())

    def said(self) -> str:
        return (self.home.parent / "farm.log").read_text()

    def call(self, name: str, *options: str, codes: Sequence[int] = (0,)) -> str:
        """What a command prints that ends so. In this process: importing torch is what takes long."""
        with contextlib.redirect_stdout(io.StringIO()) as said:
            code = main([name, "--home", str(self.home), *options])
        assert code in codes, said.getvalue()
        return said.getvalue()

    def ready(self, seconds: float = 300) -> list[dict[str, Any]]:
        """Its workers, once all take jobs."""
        end = time.monotonic() + seconds
        while True:
            workers = self.client.status()["workers"]
            if sum(worker["state"] != "starting" for worker in workers) == self.workers:
                return list(workers)
            assert time.monotonic() < end and self.head.poll() is None, self.said()
            time.sleep(0.3)

    def kill_one(self, chance: random.Random) -> str | None:
        """Kill -9 a worker's process or its ComfyUI; which."""
        workers = [worker for worker in self.client.status()["workers"] if worker["state"] != "starting"]
        if not workers:
            return None
        worker = chance.choice(workers)
        which = chance.choice(["pid", "comfyui_pid"])
        try:
            os.kill(worker[which], signal.SIGKILL)
        except ProcessLookupError:
            return None
        return f"{worker['name']}'s {which}"

    def finish(
        self, seconds: float, kill_every_s: float | None = None, chance: random.Random | None = None
    ) -> tuple[dict[str, Any], int]:
        """Until nothing waits or runs; the status, and how many were killed meanwhile.

        On a machine so busy that jobs take longer than ``kill_every_s`` each worker gets the time for one in between:
        killed again and again, a job would be set aside.
        """
        end, killed, next_kill, done = (
            time.monotonic() + seconds,
            0,
            time.monotonic() + (kill_every_s or 0),
            -self.workers,
        )
        while True:
            status = self.client.status()
            if not status["jobs"]["waiting"] and not status["jobs"]["running"]:
                return status, killed
            if kill_every_s and time.monotonic() >= next_kill and status["jobs"]["done"] >= done + self.workers:
                killed, done = killed + (self.kill_one(chance or random.Random(0)) is not None), status["jobs"]["done"]
                next_kill = time.monotonic() + kill_every_s
            assert time.monotonic() < end, (status, self.said())
            time.sleep(0.3)

    def kill_head(self) -> list[int]:
        """Kill -9 the head; the processes that its workers had."""
        workers = [worker for worker in self.client.status()["workers"] if worker["state"] != "starting"]
        pids = [worker[which] for worker in workers for which in ("pid", "comfyui_pid")]
        self.head.kill()
        self.head.wait()
        return pids

    def stop(self) -> None:
        """End it, whatever state it is in."""
        if self.head.poll() is None:
            try:
                self.client.stop(now=True)
                self.head.wait(60)
            except (FarmError, subprocess.TimeoutExpired):
                self.head.kill()
                self.head.wait()
        self.log.close()


def is_running(pid: int) -> bool:
    """Whether a process is there that isn't just waiting to be buried."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
