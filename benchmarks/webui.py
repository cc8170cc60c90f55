"""``FORGE_PATH=... python -m benchmarks.webui``: pictures made by a real Forge with the extension's toggle off and on.

Full-size SD1.5 and SDXL with random weights, Forge's own loader, memory management, sampling loop and VAE, no server;
each model in a process of its own, in rounds that alternate between off and on. Prints a table and writes CSV and
Markdown. ``--models tiny`` is a small model for a machine without a GPU: with ``FAST_COMPILE_CPU=1`` it shows that all
works, not how fast.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass

from .command import parser_of
from .machine import facts, write
from .tables import markdown

MODELS = ("SD1.5", "SDXL")
_SIZES = {"SD1.5": "512x512", "SDXL": "1024x1024", "tiny": "64x64"}


@dataclass
class Row:
    """One model with the toggle off or on."""

    model: str
    toggle: str
    steps: int
    first_s: float
    sampling_s: float
    image_s: float
    peak_bytes: int
    distance: float  #: of the latent to that with the toggle off, relative L2


def measure(model: str, steps: int, images: int, rounds: int) -> list[Row]:
    """One model in a new process.

    Raises:
        RuntimeError: it failed; the message holds the end of its output.
    """
    command = [sys.executable, "-m", "benchmarks.webui_run", model, str(steps), str(images), str(rounds)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        raise RuntimeError(f"{' '.join(command[2:])}: {run.stdout[-1000:]}{run.stderr[-3000:]}")
    return [
        Row(model=f"{model} {_SIZES[model]}", steps=steps, **found) for found in json.loads(run.stdout.splitlines()[-1])
    ]


def table(rows: list[Row]) -> str:
    """The rows as a Markdown table."""
    head = [f"Forge, {rows[0].steps} steps Euler, cfg 7", "toggle", "first picture", "sampling", "it/s", "x off"]
    head += ["whole picture", "x off", "peak memory", "distance to off"]
    found = []
    for row in rows:
        off = next((other for other in rows if (other.model, other.toggle) == (row.model, "off")), row)
        sampling = [f"{row.sampling_s:.3f} s", f"{row.steps / row.sampling_s:.1f}"]
        sampling.append(f"{off.sampling_s / row.sampling_s:.2f}")
        whole = [f"{row.image_s:.3f} s", f"{off.image_s / row.image_s:.2f}"]
        rest = [f"{row.peak_bytes / 2**30:.2f} GiB", f"{row.distance:.1e}"]
        found.append([row.model, row.toggle, f"{row.first_s:.1f} s", *sampling, *whole, *rest])
    return markdown(head, found)


def main() -> None:
    """Parse arguments, measure, print, write."""
    parser = parser_of("webui", __doc__)
    parser.add_argument("--models", default=",".join(MODELS), help=f"of {', '.join(_SIZES)}")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--images", type=int, default=3, help="pictures that are timed in each turn")
    parser.add_argument("--rounds", type=int, default=2, help="turns with the toggle off and on")
    args = parser.parse_args()
    if "FORGE_PATH" not in os.environ:
        raise SystemExit(
            "benchmarks.webui needs FORGE_PATH, the folder of a Forge, and its requirements in this Python"
        )
    machine = facts()
    rows: list[Row] = []
    for model in args.models.split(","):
        print(f"{model} ...", flush=True)
        rows += measure(model, args.steps, args.images, args.rounds)
        text = write(args.out, "webui", rows, table(rows), machine)  # after each: a run that is cut keeps what it has
    print("\n" + text)


if __name__ == "__main__":
    main()
