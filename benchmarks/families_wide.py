"""What ``python -m benchmarks.families --wide`` measures: a sampling step at true width and length beside torch.compile
and the step's floor.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import Any

import torch

from .distance import distance
from .family_models import Family
from .family_sampling import applied, build, sample, step_ms
from .floors import Rates, work_of
from .tables import markdown


@dataclass
class WideRow:
    """One family."""

    model: str
    eager_ms: float
    compile_ms: float
    ms: float
    floor_ms: float  #: of its products, convolutions and attention
    error: float  #: to float32
    eager_error: float  #: ComfyUI's own


def measure_wide(name: str, family: Family, device: torch.device, rates: Rates, compiled: bool) -> WideRow:
    """A step by ComfyUI, by torch.compile of the diffusion model, and through the node, with the same weights."""
    exact = sample(build(family, device, torch.float32), family, 1)
    gc.collect(), torch.cuda.empty_cache()
    patcher = build(family, device, torch.bfloat16)
    eager = sample(patcher, family, 1)
    row = WideRow(
        name,
        step_ms(patcher, family),
        float("nan"),
        0.0,
        rates.floor_ms(work_of(lambda: sample(patcher, family, 1))),
        0.0,
        distance(eager, exact),
    )
    fast = applied(patcher)
    for _ in range(3):
        ours = sample(fast, family, 1)
    row.ms, row.error = step_ms(fast, family), distance(ours, exact)
    print(_calls_of(patcher), flush=True)
    if compiled:
        row.compile_ms = _compiled_ms(family, device)
    return row


def _calls_of(patcher: Any) -> str:
    """What became of our calls, and why those that ran eager did."""
    from sfast_core.hosts.comfy import states

    (state,) = [state for state in states() if state.base_model() is patcher.model]
    counted = ", ".join(f"{count} {name}" for name, count in state.engine.report.calls.items())
    return f"{counted}; {'; '.join(state.engine.report.reasons) or 'none for a reason'}"


def _compiled_ms(family: Family, device: torch.device) -> float:
    """By torch.compile of the whole diffusion model, in a patcher of its own."""
    torch.compiler.reset()
    patcher = build(family, device, torch.bfloat16)
    inside: Any = patcher.model.diffusion_model
    inside.forward = torch.compile(inside.forward)
    try:
        return step_ms(patcher, family)
    except Exception as error:  # noqa: BLE001 (what it can't compile is a gap in the table)
        print(f"torch.compile: {type(error).__name__}: {str(error).splitlines()[0][:120]}", flush=True)
        return float("nan")


def wide_table(rows: list[WideRow]) -> str:
    """The rows as a Markdown table."""
    head = ["model", "ms", "of the floor", "ComfyUI's", "torch.compile", "x torch.compile", "error", "ComfyUI's"]
    found = []
    for row in rows:
        times = (row.ms, row.ms / row.floor_ms, row.eager_ms, row.compile_ms, row.compile_ms / row.ms)
        errors = (row.error, row.eager_error)
        found.append([row.model, *(f"{each:.2f}" for each in times), *(f"{each:.1e}" for each in errors)])
    return markdown(head, found)
