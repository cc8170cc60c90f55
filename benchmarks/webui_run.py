"""``python -m benchmarks.webui_run MODEL STEPS IMAGES ROUNDS [CHECKPOINT SIDE]``: pictures by a real Forge, toggle off
and on. Prints JSON.

A list with an object for off and for on: ``toggle``, ``first_s`` (its first picture), ``sampling_s`` and ``image_s``
(medians of the later ones, without and with text encoders, VAE and all else), ``peak_bytes``, ``distance`` (of the
latent to that with the toggle off). :mod:`benchmarks.webui` starts it, once per model.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from . import webui_host
from .distance import distance
from .webui_models import write_checkpoint

SIDES = {"SD1.5": 512, "SDXL": 1024, "tiny": 64}


class _Stopwatch:
    """Times the samplings of one picture after the other."""

    def __init__(self) -> None:
        self._start = 0.0
        self.seconds = 0.0
        self.latent = torch.empty(0)

    def __call__(self, what: str, given: Any) -> None:
        _synchronise()
        if what == "sampling":
            self._start = time.perf_counter()
        else:
            self.seconds = time.perf_counter() - self._start
            self.latent = given.float().cpu()


def _synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def measure(side: int, steps: int, images: int, rounds: int) -> list[dict[str, Any]]:
    """Rounds of pictures, toggle off and then on; each turn's first isn't timed: graphs were given back meanwhile."""
    stopwatch = _Stopwatch()
    scripts = webui_host.runner(stopwatch)

    def picture(enabled: bool, seed: int) -> tuple[float, float, torch.Tensor]:
        _synchronise()
        start = time.perf_counter()
        webui_host.picture(scripts, enabled, side, steps, seed)
        _synchronise()
        return stopwatch.seconds, time.perf_counter() - start, stopwatch.latent

    picture(False, 0)  # loads the model, warms the libraries
    first: dict[bool, float] = {}
    peak: Counter[bool] = Counter()
    sampling: dict[bool, list[float]] = {False: [], True: []}
    whole: dict[bool, list[float]] = {False: [], True: []}
    latents: dict[bool, torch.Tensor] = {}
    for _ in range(rounds):
        for enabled in (False, True):
            if torch.cuda.is_available():
                torch.cuda.reset_peak_memory_stats()
            first.setdefault(enabled, picture(enabled, 0)[1])
            for seed in range(1, images + 1):
                times = picture(enabled, seed)
                sampling[enabled].append(times[0])
                whole[enabled].append(times[1])
                latents[enabled] = times[2]
            peak[enabled] = max(peak[enabled], torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0)
    apart = distance(latents[True], latents[False])
    print(scripts.scripts[0].accelerator.report().text(), file=sys.stderr)
    return [
        {
            "toggle": "on" if enabled else "off",
            "first_s": first[enabled],
            "sampling_s": statistics.median(sampling[enabled]),
            "image_s": statistics.median(whole[enabled]),
            "peak_bytes": peak[enabled],
            "distance": apart if enabled else 0.0,
        }
        for enabled in (False, True)
    ]


def main() -> None:
    """One model, or one checkpoint's file."""
    name, steps, images, rounds = sys.argv[1], *map(int, sys.argv[2:5])
    given = sys.argv[5:]
    folder = Path(os.environ["FORGE_PATH"]).resolve()
    with tempfile.TemporaryDirectory() as data:
        missing = webui_host.start(folder, Path(data))
        if missing:
            print(f"not installed, and not used here: {', '.join(sorted(missing))}", file=sys.stderr)
        checkpoint = Path(given[0]) if given else Path(data) / f"{name}.safetensors"
        if not given:
            write_checkpoint(name, checkpoint, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
        webui_host.load(checkpoint)
        rows = measure(int(given[1]) if given else SIDES[name], steps, images, rounds)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
