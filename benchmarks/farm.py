"""``python -m benchmarks.farm [FOLDER]``: farms of 8, 64 and 512 GPUs, simulated by a farm's own queue and scheduler.

A job's time is what sampling 30 steps takes in ComfyUI with this pack, and what its first sampling takes more, both
from ``docs/measured/comfy.csv``; loading a checkpoint is taken to be 5 s for SD1.5 and 15 s for SDXL, and a size has
its pixels' share of the recorded one. Nothing is measured here.
"""

from __future__ import annotations

import csv
import random
from dataclasses import dataclass
from pathlib import Path

from sfast_core.farm.scheduler import choose
from sfast_core.farm.workflow import Needs

from .command import folder_of
from .farm_simulation import Arrival, Chooser, Kind, Outcome, first_come, simulate
from .publish import ROOT
from .tables import markdown, read

#: that are simulated, by the number of GPUs: jobs take a second at most, so these are many
SECONDS = {8: 600.0, 64: 300.0, 512: 120.0}
LOADS_S = {"SD1.5": 5.0, "SDXL": 15.0}  #: of a checkpoint: an assumption
CHECKPOINTS = 4  #: of each model, in use at the same time
LORAS = 3
BATCH = 50  #: pictures of a submission
LOAD = 0.8  #: of what the GPUs could compute, if nothing were ever loaded


@dataclass
class Row:
    """One simulated farm."""

    gpus: int
    scheduler: str
    jobs: int
    efficiency: float  #: of the GPUs' time until the last job was done, the share that computed pictures
    busy_efficiency: float  #: of the time that GPUs were at work, the same
    loads: int
    wait_s: float  #: of most pictures: the middle, from submission to result
    guest_s: float  #: the same of pictures of a checkpoint that nobody else uses


def kinds(recorded: Path) -> list[Kind]:
    """Jobs of both models at two sizes, with and without LoRAs, with their recorded times."""
    found = []
    for row in read(recorded):
        if row["variant"] != "ours" or row["allocator"] != "native" or row["model"] not in LOADS_S:
            continue
        sampling, first = float(row["sampling_s"]), float(row["first_s"])
        for checkpoint in range(CHECKPOINTS):
            for lora in range(LORAS):
                for size, share in (("square", 1.0), ("small", 0.5)):
                    needs = Needs((f"{row['model']}-{checkpoint}",), (f"lora-{lora}",) if lora else (), (size,))
                    found.append(Kind(needs, sampling * share, LOADS_S[row["model"]], first - sampling))
    return found


def submissions(among: list[Kind], gpus: int, seconds: float, chance: random.Random) -> list[Arrival]:
    """At random times, and a guest's."""
    mean = sum(kind.run_s for kind in among) / len(among)
    found = []
    for _ in range(int(LOAD * gpus * seconds / mean / BATCH)):
        at, kind = chance.uniform(0, seconds), chance.choice(among)
        found += [Arrival(at, kind, "all")] * BATCH
    guest = Kind(Needs(("guest",), (), ("square",)), mean, LOADS_S["SDXL"], 0.0)
    found += [Arrival(chance.uniform(0, seconds), guest, "guest") for _ in range(20)]
    return sorted(found, key=lambda arrival: arrival.at)


def row(arrivals: list[Arrival], gpus: int, name: str, chooser: Chooser) -> Row:
    """Simulate."""
    found: Outcome = simulate(arrivals, gpus, chooser)
    work = found.useful_s / found.at_work_s
    return Row(gpus, name, len(arrivals), found.efficiency, work, found.loads, found.wait("all"), found.wait("guest"))


def table(rows: list[Row]) -> str:
    """Markdown."""
    head = ["GPUs", "scheduler", "jobs", "share of busy time that computes", "checkpoints loaded"]
    found = []
    for each in rows:
        cells = [each.gpus, each.scheduler, each.jobs, f"{each.busy_efficiency:.3f}", each.loads]
        found.append([*cells, f"{each.wait_s:.0f} s", f"{each.guest_s:.0f} s"])
    return markdown([*head, "wait, most", "wait, guest"], found)


def main(
    folder: Path, sizes: dict[int, float] = SECONDS, recorded: Path = ROOT / "docs" / "measured" / "comfy.csv"
) -> None:
    """Simulate each size with both schedulers, and write the rows and their table."""
    rows = []
    for gpus, seconds in sizes.items():
        arrivals = submissions(kinds(recorded), gpus, seconds, random.Random(gpus))
        for name, chooser in (("this one", choose), ("first come", first_come)):
            rows.append(row(arrivals, gpus, name, chooser))
            print(table(rows[-1:]).splitlines()[-1], flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "farm.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, vars(rows[0]))
        writer.writeheader()
        writer.writerows(vars(each) for each in rows)
    (folder / "farm.md").write_text(
        f"{table(rows)}\n\nSimulated, not measured: `python -m benchmarks.farm`.\n", "utf-8"
    )


if __name__ == "__main__":
    main(folder_of("farm", __doc__, "farm-run"))
