"""Eager against compiled, on the user's own model in ComfyUI's own sampler."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from ...config import CompileConfig
from ...reporting.report import ModuleReport
from .install import apply, remove
from .lookup import config_of, fresh_state, report_of
from .sampling import Sampling, empty_latent, sample


@dataclass(frozen=True)
class Comparison:
    """What was measured. Seconds are those of a whole sampling, one entry a round."""

    model: str
    device: str
    shape: tuple[int, int, int]  # width and height in pixels, pictures at once
    steps: int
    eager_s: list[float]
    fast_s: list[float]
    ready_s: float  #: the first calls of the compiled model: trace, rewriting, measuring of kernels, capture
    ready_steps: int
    largest: float  #: of the differences between the two latents
    distance: float  #: their relative L2 distance
    spread: float  #: the eager latent's standard deviation
    calls: Counter[str]
    reasons: Counter[str]
    graph_bytes: int
    inputs: str | None  #: the shapes that the model ran with, where there were only these

    @property
    def speedup(self) -> float:
        """How many times faster, by the medians."""
        return statistics.median(self.eager_s) / statistics.median(self.fast_s)

    def text(self) -> str:
        """A few lines to read."""
        width, height, batch = self.shape
        eager, fast = statistics.median(self.eager_s), statistics.median(self.fast_s)
        lines = [
            f"{self.model}, {width}x{height}{f' x{batch}' if batch > 1 else ''}, {self.steps} steps, on {self.device}",
            f"eager: {eager:.3f} s ({self.steps / eager:.2f} steps/s), {_rounds(self.eager_s)}",
            f"fast: {fast:.3f} s ({self.steps / fast:.2f} steps/s), {_rounds(self.fast_s)}",
            f"{self.speedup:.2f} x eager, {rounds_in_words(len(self.fast_s))}",
            f"getting ready: {self.ready_s:.2f} s for the first {self.ready_steps} steps, once per size",
            (
                f"largest difference between the two latents: {self.largest:.2e} (their values spread by"
                f" {self.spread:.2e}; relative distance {self.distance:.1e})"
            ),
            "calls: " + ", ".join(f"{count} {path}" for path, count in self.calls.most_common()),
            f"graphs: {self.graph_bytes / 2**20:.0f} MB",
        ]
        lines += [f"eager, {count}x: {reason}" for reason, count in self.reasons.most_common()]
        if not self.device.startswith("cuda"):
            lines.insert(0, NO_GPU)
        return "\n".join(lines)


NO_GPU = (
    "There is no NVIDIA GPU here: nothing is faster on this machine, and these times say nothing about one that has a"
    " GPU."
)


def why_not(model: Any) -> str | None:
    """Why a comparison would say nothing, or None."""
    config = config_of(model) or CompileConfig()
    if model.load_device.type != "cuda" and not config.cpu_allowed():
        return (
            f"There is no NVIDIA GPU here: the model runs on {model.load_device.type}, where it isn't compiled. Nothing"
            " was measured."
        )
    return None


def steps_in_all(model: Any, steps: int, rounds: int) -> int:
    """How many steps :func:`compare` samples."""
    return rounds * (1 + steps + _ready_steps(model) + steps)


def compare(
    model: Any,
    shape: tuple[int, int, int],
    how: Sampling,
    steps: int,
    rounds: int,
    on_step: Callable[[], None] | None = None,
) -> Comparison:
    """Sample in turn the plain and the compiled model from the same noise, ``rounds`` times, and leave no trace, graph
    or weight layout.

    Before each timed sampling come untimed steps: a plain call gives the weights their plain layout back and drops the
    graphs.

    Args:
        model: a ModelPatcher, through ``Apply Fast Compile`` (then with its settings) or not.
        shape: width and height in pixels, pictures at once.
        how: conditioning, cfg, sampler, scheduler and seed.
        steps: of a timed sampling.
        rounds: 1 or more.
        on_step: called after each step.

    Raises:
        comfy.model_management.InterruptProcessingException: the user has cancelled.
    """
    config = config_of(model) or CompileConfig()
    plain = model.clone()
    remove(plain)
    fast = apply(plain, config)
    latent, untimed = empty_latent(model, *shape), replace(how, seed=how.seed + 1)
    times: dict[str, list[float]] = {"eager": [], "fast": [], "ready": []}

    def timed(name: str, patcher: Any, count: int, sampling: Sampling) -> torch.Tensor:
        start = time.perf_counter()
        result = sample(patcher, latent, sampling, count, on_step)
        if result.device.type == "cuda":
            torch.cuda.synchronize(result.device)
        times[name].append(time.perf_counter() - start)
        return result

    with fresh_state(model):
        for _ in range(rounds):
            sample(plain, latent, untimed, 1, on_step)
            theirs = timed("eager", plain, steps, how)
            timed("ready", fast, _ready_steps(model), untimed)
            mine = timed("fast", fast, steps, how)
        report = report_of(
            model, lambda found: found.modules[0] if found.modules else ModuleReport(type(model.model).__name__)
        )
        graph_bytes = report.graph_bytes
        inputs = report.signatures[0].inputs if len(report.signatures) == 1 else None
    theirs, mine = theirs.double().cpu(), mine.double().cpu()
    return Comparison(
        model=report.name,
        device=_device(model.load_device),
        shape=shape,
        steps=steps,
        eager_s=times["eager"],
        fast_s=times["fast"],
        ready_s=times["ready"][0],
        ready_steps=_ready_steps(model),
        largest=(mine - theirs).abs().max().item(),
        distance=((mine - theirs).norm() / theirs.norm()).item(),
        spread=theirs.std().item(),
        calls=Counter(report.calls),
        reasons=Counter(report.reasons),
        graph_bytes=graph_bytes,
        inputs=inputs,
    )


def _ready_steps(model: Any) -> int:
    return (config_of(model) or CompileConfig()).capture_after


def _device(device: torch.device) -> str:
    return f"cuda ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else device.type


def rounds_in_words(count: int) -> str:
    """What the figures are of so many rounds."""
    return "of 1 round" if count == 1 else f"medians of {count} rounds that alternate between the two"


def _rounds(seconds: list[float]) -> str:
    return ("rounds " if len(seconds) > 1 else "round ") + ", ".join(f"{value:.3f}" for value in seconds)
