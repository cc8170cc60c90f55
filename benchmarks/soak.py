"""``COMFYUI_PATH=... python -m benchmarks.soak``: hundreds of random changes in a real ComfyUI, each compared with a
plain model beside it.

LoRAs come, go and change their strength; prompts, their length, resolution, batch, cfg, ControlNet and the patches of
other nodes change. After each change both models sample the same noise. Counted are new traces and captures, pictures
further from eager's than ``--bound`` (stale: computed from what was there before), states that came back with other
bits than they had, and the memory. Apart from these stand states that were recorded with other nodes' code that may run
once only, and whose bits are others since (docs/live-code.md). Random weights,
ComfyUI's own loader and sampler, no server. ``--tiny`` with ``FAST_COMPILE_CPU=1`` runs it without a GPU. Exits with 1
where anything is wrong.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .command import comfyui_for, parser_of, version
from .machine import facts, write
from .soak_plan import KINDS
from .tables import markdown

MODELS = ("SD1.5", "SDXL")
ALL = "all"
_MOMENTS = ("before", "loaded", "warmed_up", "at_the_end", "unloaded")
#: in float16 eager itself is 2e-3 from another order of the same sums, and cfg 7 multiplies that
_BOUNDS = {"cuda": 2e-2, "cpu": 1e-3}


@dataclass
class Row:
    """What one kind of change led to, medians of seconds; a swap's: those beyond the same sampling once more."""

    model: str
    change: str
    count: int
    swaps: int
    eager_s: float
    ours_s: float
    eager_swap_s: float
    ours_swap_s: float
    traces: int
    captures: int
    eager_calls: int
    worst_distance: float
    stale: int
    revisits: int
    other_bits: int
    first_bits: int
    eager_other_bits: int
    failures: int
    before_bytes: int = 0
    loaded_bytes: int = 0
    warmed_up_bytes: int = 0
    at_the_end_bytes: int = 0
    unloaded_bytes: int = 0

    @property
    def wrong(self) -> int:
        """Pictures that aren't what they should be. Other bits don't count where eager has other bits too."""
        return self.stale + self.failures + max(0, self.other_bits - self.eager_other_bits)


def rows_of(model: str, found: dict[str, Any], bound: float | None = None) -> list[Row]:
    """A row per kind of change that happened, and one of all.

    Args:
        model: which was sampled.
        found: what :mod:`benchmarks.soak_run` prints.
        bound: distance from which a picture is stale; None: as the device computes.
    """
    outcomes = found["outcomes"]
    bound = bound or _BOUNDS[found["device"]]
    rows = [
        _row(model, kind, chosen, bound)
        for kind in KINDS
        if (chosen := [one for one in outcomes if one["kind"] == kind])
    ]
    total = _row(model, ALL, outcomes, bound)
    for moment in _MOMENTS:
        setattr(total, f"{moment}_bytes", found["memory"].get(moment, 0))
    return [*rows, total]


def _row(model: str, change: str, outcomes: list[dict[str, Any]], bound: float) -> Row:
    swaps = [one for one in outcomes if one["swap"] and not one["failure"]]

    def median(seconds: Callable[[dict[str, Any]], float], among: list[dict[str, Any]]) -> float:
        return statistics.median(map(seconds, among)) if among else 0.0

    def count(name: str) -> int:
        return sum(int(one[name]) for one in outcomes)

    return Row(
        model=model,
        change=change,
        count=len(outcomes),
        swaps=count("swap"),
        eager_s=median(lambda one: one["eager_s"], outcomes),
        ours_s=median(lambda one: one["ours_s"], outcomes),
        eager_swap_s=median(lambda one: one["eager_s"] - one["eager_again_s"], swaps),
        ours_swap_s=median(lambda one: one["ours_s"] - one["ours_again_s"], swaps),
        traces=count("traces"),
        captures=count("captures"),
        eager_calls=count("eager_calls"),
        worst_distance=max((one["distance"] for one in outcomes), default=0.0),
        stale=sum(not one["distance"] <= bound and not one["failure"] for one in outcomes),
        revisits=count("revisited"),
        other_bits=count("other_bits"),
        first_bits=count("first_bits"),
        eager_other_bits=count("eager_other_bits"),
        failures=sum(bool(one["failure"]) for one in outcomes),
    )


def table(rows: list[Row], reasons: dict[str, int] | None = None) -> str:
    """The rows as a Markdown table, the memory, and why calls ran eager."""
    head = [f"{rows[0].model}: change", "times", "swaps", "eager", "ours", "eager's swap", "our swap", "traces"]
    head += ["captures", "eager calls", "worst distance", "stale", "came back", "other bits", "failed"]
    found = []
    for row in rows:
        swap = (f"{row.eager_swap_s:.3f} s", f"{row.ours_swap_s:.3f} s") if row.swaps else ("", "")
        counts = [row.traces, row.captures, row.eager_calls, f"{row.worst_distance:.1e}"]
        counts += [row.stale, row.revisits, row.other_bits, row.failures]
        found.append([row.change, row.count, row.swaps, f"{row.eager_s:.3f} s", f"{row.ours_s:.3f} s", *swap, *counts])
    lines = [markdown(head, found)]
    total = rows[-1]
    used = [f"{moment.replace('_', ' ')} {getattr(total, f'{moment}_bytes') / 2**30:.2f} GiB" for moment in _MOMENTS]
    lines += ["", f"Memory in use, both models: {', '.join(used)}."]
    if total.first_bits:
        lines.append(f"Recorded with live code that may run once only, and other bits since: {total.first_bits}.")
    if total.eager_other_bits:
        lines.append(f"Eager's own bits were others {total.eager_other_bits} times.")
    if reasons:
        lines += [
            "",
            "Calls that ran as without the node:",
            "",
            *(f"- {count}x {reason}" for reason, count in reasons.items()),
        ]
    return "\n".join(lines)


def soak(model: str, changes: int, seed: int, steps: int, limit_s: float) -> dict[str, Any]:
    """Run :mod:`benchmarks.soak_run` in a new process; its progress goes to this one's standard error.

    Raises:
        RuntimeError: it failed.
    """
    command = [sys.executable, "-m", "benchmarks.soak_run", model, *map(str, (changes, seed, steps, limit_s))]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if run.returncode:
        raise RuntimeError(f"{' '.join(command[2:])} failed with {run.returncode}; see above")
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return found


def main() -> int:
    """Parse arguments, walk, print, write."""
    parser = parser_of("soak", __doc__)
    parser.add_argument("--changes", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0, help="another walk")
    parser.add_argument("--steps", type=int, default=2, help="sampling steps after each change")
    parser.add_argument("--model", choices=MODELS, default="SD1.5")
    parser.add_argument(
        "--tiny", action="store_true", help="the smallest model that ComfyUI takes for SD1.5, and small pictures"
    )
    parser.add_argument("--bound", type=float, help="relative L2 distance to eager from which a picture is stale")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="stop walking after so many seconds")
    args = parser.parse_args()
    comfyui = comfyui_for("soak")
    model = "tiny" if args.tiny else args.model
    found = soak(model, args.changes, args.seed, args.steps, args.limit_s)
    rows = rows_of(model, found, args.bound)
    machine = {
        "ComfyUI": version(comfyui),
        "steps": str(args.steps),
        "seed": str(args.seed),
        **facts(),
    }
    print(write(args.out, "soak", rows, table(rows, found["reasons"]), machine))
    for failure in dict.fromkeys(one["failure"] for one in found["outcomes"] if one["failure"]):
        print(f"failed: {failure}")
    return int(rows[-1].wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
