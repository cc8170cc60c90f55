"""``COMFYUI_PATH=... python -m benchmarks.farm_gpus``: a real farm of one, two and more GPUs of this machine, one after
another, with the same jobs.

Each job is a workflow of ComfyUI's with our node: SD1.5 with random weights, two sizes, without a LoRA and with either
of two, 20 steps, a file. Before the clock starts every worker has had as many jobs as there are kinds, in whatever
order the scheduler gave them out. Efficiency is the throughput beside the first farm's, by worker. ``--kill``: the last
farm has its jobs again, and a worker is killed in the middle. How many files are others than those that a farm before
has made of the same jobs is said for each, and of some of them which workers made them and how far their pixels are
apart. Needs Ray.
``--model tiny -- --cpu`` runs it without a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sfast_core.farm.client import Client

from .farm_models import LORAS, lora_name
from .machine import facts, write
from .tables import markdown

_SIZES = {"SD1.5": ((512, 512), (640, 384)), "tiny": ((64, 64), (96, 64))}
_STEPS = 20
_PATIENCE_S = 900.0
_TOLD = 12  #: files that are others, by name
_KILL_AFTER = 0.4  #: of the jobs


@dataclass
class Row:
    """One farm."""

    gpus: int
    jobs: int
    killed: int = 0
    ready_s: float = 0.0  #: from the start until every worker takes jobs
    warm_up_s: float = 0.0
    seconds: float = 0.0
    per_minute: float = 0.0
    efficiency: float = 1.0
    done: int = 0
    other_files: int = 0  #: of those that a farm before it has made, too: others, or missing


def kinds(model: str, steps: int) -> list[tuple[str, dict[str, Any]]]:
    """Each kind of job: a name and a workflow in API form."""
    return [
        (f"{width}x{height}-{'plain' if lora is None else lora}", workflow(width, height, lora, steps))
        for width, height in _SIZES[model]
        for lora in (None, *range(LORAS))
    ]


def workflow(width: int, height: int, lora: int | None, steps: int) -> dict[str, Any]:
    """One picture through our node, with a LoRA in front of it or none."""
    nodes: dict[str, Any] = {
        "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "farm.safetensors"}},
        "3": {"class_type": "ApplyFastCompile", "inputs": {"model": ["1", 0], "enabled": True, "cuda_graphs": True}},
        "4": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["1", 1], "text": "a fox in the snow"}},
        "5": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["1", 1], "text": "blurry"}},
        "6": {"class_type": "EmptyLatentImage", "inputs": {"width": width, "height": height, "batch_size": 1}},
        "7": {
            "class_type": "KSampler",
            "inputs": {
                "model": ["3", 0],
                "seed": 0,
                "steps": steps,
                "cfg": 7.0,
                "sampler_name": "euler",
                "scheduler": "normal",
                "positive": ["4", 0],
                "negative": ["5", 0],
                "latent_image": ["6", 0],
                "denoise": 1.0,
            },
        },
        "8": {"class_type": "VAEDecode", "inputs": {"samples": ["7", 0], "vae": ["1", 2]}},
        "9": {"class_type": "SaveImage", "inputs": {"images": ["8", 0], "filename_prefix": "farm"}},
    }
    if lora is not None:
        inputs = {"model": ["1", 0], "lora_name": lora_name(lora), "strength_model": 0.8}
        nodes["2"] = {"class_type": "LoraLoaderModelOnly", "inputs": inputs}
        nodes["3"]["inputs"]["model"] = ["2", 0]
    return nodes


class Farm:
    """A farm in processes of its own, on the machine's first GPUs.

    Args:
        home: its folder.
        gpus: how many workers.
        comfyui: the ComfyUI that they run.
        python: that runs it.
        options: of ComfyUI.
    """

    def __init__(self, home: Path, gpus: int, comfyui: Path, python: str, options: Sequence[str]) -> None:
        self.home, self.gpus = home, gpus
        home.mkdir(parents=True)
        command = [sys.executable, "-m", "sfast_core.farm", "start", "--home", str(home), "--port", "0"]
        command += ["--dashboard-port", "0", "--workers", str(gpus), "--comfyui", str(comfyui)]
        self._log = (home.parent / f"farm-{home.name}.log").open("w")
        self._head = subprocess.Popen(
            [*command, "--comfyui-python", python, "--", *options],
            cwd=Path(__file__).parents[1],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(gpus)))},
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        told = home / "head.json"
        self._until(told.exists)
        self.client = Client(json.loads(told.read_text())["address"], (home / "token").read_text())

    def ready(self) -> None:
        """Wait until every worker takes jobs."""
        self._until(lambda: sum(each["state"] != "starting" for each in self.client.status()["workers"]) == self.gpus)

    def run(
        self, jobs: int, out: str, each: Sequence[tuple[str, dict[str, Any]]], kill_after: float | None = None
    ) -> tuple[float, int]:
        """Submit ``jobs``, equally many of ``each`` kind, and wait; the seconds, and how many workers were killed.

        ``kill_after``: the share of the jobs after which one is.
        """
        start, killed = time.perf_counter(), 0
        before = self.client.status()["jobs"]["done"]
        for number, (name, prompt) in enumerate(each):
            count = jobs // len(each) + (number < jobs % len(each))
            if count:
                self.client.submit(name, prompt, f"0-{count - 1}", out)
        while True:
            status = self.client.status()
            if status["aside"]:
                aside = status["aside"][0]
                raise RuntimeError(f"set aside: {aside['name']}: {aside['reason']}\n{aside['log']}")
            if not status["jobs"]["waiting"] and not status["jobs"]["running"]:
                return time.perf_counter() - start, killed
            if kill_after is not None and not killed and status["jobs"]["done"] - before >= kill_after * jobs:
                os.kill(
                    next(worker["pid"] for worker in status["workers"] if worker["state"] != "starting"), signal.SIGKILL
                )
                killed = 1
            self._check(start)
            time.sleep(0.05)

    def files(self, out: str) -> dict[str, str]:
        """What it wrote there: names and digests."""
        folder = self.home / "output" / out
        return {
            str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in folder.rglob("*")
            if path.is_file()
        }

    def stop(self) -> None:
        """End it."""
        with contextlib.suppress(Exception):
            self.client.stop(now=True)
        try:
            self._head.wait(60)
        except subprocess.TimeoutExpired:
            self._head.kill()
            self._head.wait()
        self._log.close()

    def _until(self, done: Callable[[], bool]) -> None:
        start = time.perf_counter()
        while not done():
            self._check(start)
            time.sleep(0.1)

    def _check(self, start: float) -> None:
        if self._head.poll() is not None or time.perf_counter() - start > _PATIENCE_S:
            raise RuntimeError(f"the farm doesn't go on:\n{Path(self._log.name).read_text()[-3000:]}")


@contextlib.contextmanager
def farm(*arguments: Any) -> Iterator[Farm]:
    """One that is stopped whatever happens."""
    made = Farm(*arguments)
    try:
        yield made
    finally:
        made.stop()


def measure(options: argparse.Namespace, folder: Path) -> list[Row]:
    """A row for each number of GPUs."""
    models = folder / "models"
    subprocess.run([options.python, "-m", "benchmarks.farm_models", options.model, str(models)], check=True)
    config = folder / "models.yaml"
    nodes = folder / "custom_nodes"
    nodes.mkdir()
    (nodes / "fast-compile").symlink_to(Path(__file__).parents[1], target_is_directory=True)
    places = {"checkpoints": models / "checkpoints", "loras": models / "loras", "custom_nodes": nodes}
    config.write_text("farm:\n" + "".join(f"    {name}: {path}\n" for name, path in places.items()), "utf-8")
    comfyui = ["--extra-model-paths-config", str(config), *options.comfyui_options]
    rows: list[Row] = []
    each = kinds(options.model, options.steps)
    known: dict[str, tuple[str, Path]] = {}
    for index, gpus in enumerate(options.gpus):
        home, start = folder / str(index), time.perf_counter()
        with farm(home, gpus, options.comfyui, options.python, comfyui) as made:
            made.ready()
            ready_s = time.perf_counter() - start
            warm_up_s, _ = made.run(gpus * len(each) * options.warm_up, "warm-up", each)
            runs = {"out": None, "killed": _KILL_AFTER} if options.kill and gpus == options.gpus[-1] else {"out": None}
            for out, kill in runs.items():
                row = Row(gpus, options.jobs * (gpus if options.per_gpu else 1), 0, ready_s, warm_up_s)
                row.seconds, row.killed = made.run(row.jobs, out, each, kill)
                files = made.files(out)
                others = sorted(name for name, (digest, _) in known.items() if files.get(name) != digest)
                row.done, row.other_files = len(files), len(others)
                for name in others[:_TOLD]:
                    print(f"another file: {name}: {_apart(known[name][1], home / 'output' / out, name)}", flush=True)
                known = {name: (digest, home / "output" / out) for name, digest in files.items()} | known
                row.per_minute = 60 * len(files) / row.seconds
                rows.append(row)
                row.efficiency = row.per_minute / gpus / (rows[0].per_minute / rows[0].gpus)
                print(row, flush=True)
    return rows


def _apart(one: Path, other: Path, name: str) -> str:
    """How far one picture in two farms' folders is apart, and who made it."""
    import numpy
    from PIL import Image

    paths = [folder / name for folder in (one, other)]
    made = " and ".join(_worker(folder, name) for folder in (one, other))
    if not all(path.exists() for path in paths):
        return f"made by {made}; in one of them alone"
    pixels = [numpy.asarray(Image.open(path), dtype=numpy.int16) for path in paths]
    most = int(abs(pixels[0] - pixels[1]).max()) if pixels[0].shape == pixels[1].shape else 255
    return f"made by {made}; at most {most} of 255 apart"


def _worker(folder: Path, name: str) -> str:
    """The worker that wrote a file there, and whether its model was cold."""
    queue_file = folder.parents[1] / "queue.sqlite"
    with contextlib.closing(sqlite3.connect(f"file:{queue_file}?mode=ro", uri=True)) as queue:
        rows = queue.execute(
            "SELECT worker, cold FROM jobs WHERE instr(files, ?) AND out = ?", (Path(name).name, folder.name)
        ).fetchall()
    return " or ".join(f"{worker}{' (cold)' if cold else ''}" for worker, cold in rows) or "nobody known"


def table(rows: Sequence[Row]) -> str:
    """Markdown."""
    head = ["GPUs", "jobs", "workers killed", "ready", "warm-up", "seconds", "pictures a minute", "efficiency"]
    head.append("other files than a smaller farm's")
    found = []
    for row in rows:
        cells = [row.gpus, row.jobs, row.killed, f"{row.ready_s:.1f} s", f"{row.warm_up_s:.1f} s", f"{row.seconds:.1f}"]
        found.append([*cells, f"{row.per_minute:.0f}", f"{row.efficiency:.3f}", row.other_files])
    return markdown(head, found)


def main(arguments: Sequence[str]) -> int:
    """Measure, print, write. 1 where a picture is missing or another one."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.farm_gpus", description=__doc__)
    parser.add_argument(
        "--gpus", type=lambda text: [int(each) for each in text.split(",")], default=[1, 2], help="farms, such as 1,2,4"
    )
    parser.add_argument("--jobs", type=int, default=200, help="of each farm, behind its warm-up (200)")
    parser.add_argument("--per-gpu", action="store_true", help="--jobs is for each GPU: as long for each farm")
    parser.add_argument("--steps", type=int, default=_STEPS, help="of a job's sampling (20)")
    parser.add_argument("--warm-up", type=int, default=3, help="so many jobs of each kind for a worker (3)")
    parser.add_argument(
        "--kill", action="store_true", help="the last farm's jobs again, and a worker killed in the middle"
    )
    parser.add_argument("--model", choices=("SD1.5", "tiny"), default="SD1.5")
    parser.add_argument("--comfyui", type=Path, default=os.environ.get("COMFYUI_PATH"), help="(COMFYUI_PATH)")
    parser.add_argument("--python", default=sys.executable, help="that runs it (this one)")
    parser.add_argument("--out", type=Path, default=Path("farm-run"), help="folder for farm_gpus.csv and farm_gpus.md")
    given = list(arguments)
    end = given.index("--") if "--" in given else len(given)
    options = parser.parse_args(given[:end])
    options.comfyui_options = given[end + 1 :]
    if options.comfyui is None:
        parser.error("--comfyui: got nothing, needs a ComfyUI's folder, or COMFYUI_PATH")
    with tempfile.TemporaryDirectory(prefix="fast-compile-farm-") as folder:
        rows = measure(options, Path(folder))
    print(write(options.out, "farm_gpus", rows, table(rows), facts()))
    return int(any(row.done != row.jobs or row.other_files for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
