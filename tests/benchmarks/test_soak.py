"""The soak's walk and what is made of its outcomes. The walk itself needs a ComfyUI (``COMFYUI_PATH``)."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import soak, soak_plan, soak_run
from benchmarks.soak_run import Outcome

ROOT = Path(__file__).resolve().parents[2]


def outcome(kind: str = "prompt", **values: Any) -> dict[str, Any]:
    """One change that went well, but for ``values``."""
    from dataclasses import asdict

    return asdict(replace(Outcome(kind, False, 0.2, 0.1, distance=1e-3), **values))


def found(*outcomes: dict[str, Any], device: str = "cuda") -> dict[str, Any]:
    """As the walk prints it."""
    return {"outcomes": list(outcomes), "memory": {"loaded": 2**31, "unloaded": 2**29}, "reasons": {}, "device": device}


def test_the_seed_decides_the_walk_and_every_step_changes_something() -> None:
    walk = soak_plan.plan("SD1.5", 500, seed=3)
    assert walk == soak_plan.plan("SD1.5", 500, seed=3) != soak_plan.plan("SD1.5", 500, seed=4)
    states = [soak_plan.State(soak_plan.SIZES["SD1.5"][0]), *(change.state for change in walk)]
    for before, change in zip(states, walk, strict=False):
        assert change.state != before and change.swap == (change.state.loras != before.loras)


def test_the_walk_goes_everywhere() -> None:
    walk = soak_plan.plan("SD1.5", 500)
    assert set(Counter(change.kind for change in walk)) == set(soak_plan.KINDS)
    states = [change.state for change in walk]
    assert {state.size for state in states} == set(soak_plan.SIZES["SD1.5"])
    assert {state.tokens for state in states} == set(soak_plan.TOKENS)
    assert {name for state in states for name in state.patches} == set(soak_plan.PATCHES)
    assert {len(state.patches) for state in states} == set(range(soak_plan.MOST_PATCHES + 1))
    assert {state.sampler for state in states} == set(soak_plan.SAMPLERS)
    assert {(state.batch, state.cfg, state.control > 0, state.node_last) for state in states} >= {
        (1, 7.0, False, False),
        (2, 1.0, True, False),
    }
    assert {len(state.loras) for state in states} == set(range(soak_plan.MOST_LORAS + 1)), (
        "LoRAs come and all of them go"
    )
    assert all(len(dict(state.loras)) == len(state.loras) for state in states), "no LoRA twice"
    assert sum(not state.loras for state in states) > 20 and sum(change.swap for change in walk) > 150
    assert len(states) - len(set(states)) > 50, "states come back, or no bits could be compared"


@pytest.mark.parametrize("model", soak_plan.SIZES)
def test_sizes_are_whole_latents_and_one_is_odd(model: str) -> None:
    sides = [side for size in soak_plan.SIZES[model] for side in size]
    assert all(side % 8 == 0 for side in sides) and any(side // 8 % 2 for side in sides)


def test_rows_count_by_kind_and_in_all() -> None:
    rows = soak.rows_of(
        "SD1.5",
        found(
            outcome("LoRA set", swap=True, eager_s=0.5, eager_again_s=0.2, ours_s=0.2, ours_again_s=0.1),
            outcome(
                "LoRA set",
                swap=True,
                eager_s=0.7,
                eager_again_s=0.2,
                ours_s=0.4,
                ours_again_s=0.1,
                traces=1,
                captures=2,
            ),
            outcome("prompt", distance=0.3, revisited=True, eager_calls=2),
        ),
    )
    assert [row.change for row in rows] == ["LoRA set", "prompt", "all"]
    swap, prompt, total = rows
    assert (swap.count, swap.swaps, swap.eager_swap_s, swap.ours_swap_s) == (
        2,
        2,
        pytest.approx(0.4),
        pytest.approx(0.2),
    )
    assert (swap.traces, swap.captures, swap.stale, swap.wrong) == (1, 2, 0, 0)
    assert (prompt.swaps, prompt.eager_swap_s, prompt.stale, prompt.revisits, prompt.eager_calls) == (0, 0.0, 1, 1, 2)
    assert (total.count, total.stale, total.worst_distance, total.loaded_bytes, total.at_the_end_bytes) == (
        3,
        1,
        0.3,
        2**31,
        0,
    )
    assert swap.loaded_bytes == 0


def test_what_counts_as_wrong() -> None:
    def wrong(device: str = "cuda", bound: float | None = None, **values: Any) -> int:
        return soak.rows_of("tiny", found(outcome(**values), device=device), bound)[-1].wrong

    assert wrong() == wrong(distance=1.9e-2) == 0 and wrong(distance=2.1e-2) == 1
    assert wrong("cpu", distance=1.9e-2) == 1 and wrong("cpu", bound=0.1, distance=1.9e-2) == 0
    assert wrong(distance=math.nan) == 1 and wrong(distance=math.inf, failure="RuntimeError: no") == 1
    assert wrong(other_bits=True) == 1 and wrong(other_bits=True, eager_other_bits=True) == 0
    assert wrong(first_bits=True) == 0


class Sampled:
    """Stands for both models, and gives their latents one after another: eager's, ours, and both again.

    ``recorded``: of each of our two, whether live code was recorded meanwhile.
    """

    def __init__(self, latents: tuple[float, ...], recorded: tuple[bool, bool] = (False, False)) -> None:
        self._latents, self._recorded = iter(latents), iter(recorded)

    def patcher(self, *_: Any) -> None: ...

    def other_bits(self, state: Any, latent: torch.Tensor, recorded: bool = False) -> tuple[bool, bool, bool]:
        return False, False, recorded

    def read(self) -> tuple[int, int, int]:
        return 0, 0, 0

    def recorded_live(self) -> bool:
        return next(self._recorded)

    def __call__(self, *_: Any) -> tuple[torch.Tensor, float]:
        return torch.tensor([next(self._latents)]), 1.0

    def outcome(self) -> Outcome:
        change = soak_plan.Change("LoRA set", soak_plan.State((64, 64)), swap=True)
        models: Any = self
        return soak_run._one(change, models, models, [], models, models)


def test_other_bits_of_the_second_time_after_a_swap() -> None:
    def bits(*latents: float, recorded: tuple[bool, bool] = (False, False)) -> tuple[bool, bool, bool]:
        one = Sampled(latents, recorded).outcome()
        return one.other_bits, one.first_bits, one.eager_other_bits

    assert bits(1.0, 1.5, 1.0, 1.5) == (False, False, False)
    assert bits(1.0, 1.5, 1.0, 2.0) == (True, False, False)
    assert bits(1.0, 1.5, 2.0, 2.0) == (True, False, True), "ComfyUI's own has other bits, too"
    for recorded in ((True, False), (False, True)):
        assert bits(1.0, 1.5, 1.0, 2.0, recorded=recorded) == (False, True, False)


def test_the_table_shows_memory_and_reasons() -> None:
    rows = soak.rows_of("SD1.5", found(outcome("LoRA set", swap=True, eager_s=0.5, ours_s=0.2), outcome()))
    text = soak.table(rows, {"FreeU_V2 patches the model": 4})
    lines = text.splitlines()
    assert len({line.count("|") for line in lines if line.startswith("|")}) == 1, "as many cells in every line"
    assert lines[2].startswith("| LoRA set | 1 | 1 | 0.500 s | 0.200 s | 0.500 s | 0.200 s | 0 |")
    assert "other bits since" not in text
    assert "other bits since: 1." in soak.table(soak.rows_of("SD1.5", found(outcome(first_bits=True))))
    assert "loaded 2.00 GiB" in text and "- 4x FreeU_V2 patches the model" in text


@pytest.mark.host
@pytest.mark.skipif("COMFYUI_PATH" not in os.environ, reason="needs a ComfyUI: set COMFYUI_PATH to its folder")
def test_a_few_changes_of_a_tiny_model_in_a_real_comfyui() -> None:
    """On the CPU, every state as eager has it."""
    command = [
        os.environ.get("COMFYUI_PYTHON") or sys.executable,
        "-m",
        "benchmarks.soak_run",
        "tiny",
        "8",
        "1",
        "2",
        "300",
    ]
    environment = {**os.environ, "FAST_COMPILE_CPU": "1", "CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr[-3000:]
    rows = soak.rows_of("tiny", json.loads(run.stdout.splitlines()[-1]))
    assert rows[-1].count == 8 and rows[-1].traces > 0 and rows[-1].swaps > 0, soak.table(rows)
    assert rows[-1].wrong == 0, soak.table(rows)
