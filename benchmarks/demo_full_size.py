"""SD1.5's and SDXL's UNets at full size with random weights, eager against fast, on a GPU: the demo's second table."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .distance import distance
from .full_size import MODELS, FullSize, build_unet, inputs_for

HEADER = (
    "UNet, fp16, batch 2",
    "eager",
    "fast",
    "speed-up",
    "first two calls",
    "peak eager",
    "peak fast",
    "difference to eager",
)
TOLERANCE = 2e-2  #: relative; another order of fp16 operations alone gives about 2e-3


@dataclass(frozen=True)
class Measured:
    """One model's outcome: a row below HEADER, or why there is none; the report's text; what is wrong, if anything."""

    row: tuple[str, ...] | None
    skipped: str | None = None
    report: str = ""
    wrong: str | None = None


def _seconds(device: torch.device, call: Callable[[], Any]) -> float:
    torch.cuda.synchronize(device)
    start = time.perf_counter()
    call()
    torch.cuda.synchronize(device)
    return time.perf_counter() - start


def _median_ms(device: torch.device, call: Callable[[], Any], count: int) -> float:
    return statistics.median(_seconds(device, call) for _ in range(count)) * 1000.0


@torch.no_grad()
def measure(model: FullSize, device: torch.device, repeats: int = 20) -> Measured:
    """Time ``model`` eager, then compiled, in fp16; one after the other, since compiling lays the weights out anew.

    Raises:
        torch.cuda.OutOfMemoryError: it doesn't fit after all.
    """
    import sfast_core

    free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if free < model.needed_bytes:
        return Measured(
            None,
            f"{model.name}: left out, it needs {model.needed_bytes / 2**30:.0f} GiB of GPU memory and"
            f" {free / 2**30:.1f} are free",
        )
    unet = build_unet(model.config, device, torch.float16)
    inputs = inputs_for(unet, device, torch.float16)

    def forward() -> torch.Tensor:
        return unet(**inputs)[0]

    for _ in range(3):
        forward()
    torch.cuda.reset_peak_memory_stats(device)
    eager_ms = _median_ms(device, forward, repeats)
    expected = forward().float()
    eager_peak = torch.cuda.max_memory_allocated(device)

    compiled = sfast_core.compile(unet, name=model.name)
    torch.cuda.reset_peak_memory_stats(device)
    first_s = _seconds(device, forward) + _seconds(device, forward)  # the first traces, the second captures
    forward()
    fast_ms = _median_ms(device, forward, repeats)
    got = forward().float()
    fast_peak = torch.cuda.max_memory_allocated(device)
    report = compiled.report().text()
    compiled.uninstall()

    difference = distance(got, expected)
    wrong = (
        None
        if difference <= TOLERANCE
        else f"{model.name}: the fast result is {difference:.1e} from eager's, at most {TOLERANCE:.0e} is fine"
    )
    row = (
        model.name,
        f"{eager_ms:.2f} ms",
        f"{fast_ms:.2f} ms",
        f"{eager_ms / fast_ms:.2f}x",
        f"{first_s:.1f} s",
        f"{eager_peak / 1e9:.2f} GB",
        f"{fast_peak / 1e9:.2f} GB",
        f"{difference:.1e}",
    )
    return Measured(row, None, report, wrong)


def measure_all(device: torch.device) -> list[Measured]:
    """Every model of MODELS, with a line of progress each; what runs out of memory is left out and says so."""
    found = []
    for model in MODELS:
        print(f"{model.name}: full-size UNet with random weights ...", flush=True)
        try:
            measured = measure(model, device)
        except torch.cuda.OutOfMemoryError:
            measured = Measured(None, f"{model.name}: left out, it ran out of GPU memory")
        torch.cuda.empty_cache()
        if measured.skipped:
            print(measured.skipped, flush=True)
        found.append(measured)
    return found
