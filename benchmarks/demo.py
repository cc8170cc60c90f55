"""``python -m benchmarks.demo``: the pictures of a small text-to-image model, eager and fast, side by side in one PNG.

The model ships with the pack (benchmarks/demo_model). On a GPU the demo also times SD1.5's and SDXL's UNets at full
size with random weights. Needs no network. Exits with 0 unless something is wrong.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from . import demo_full_size
from .demo_options import PICTURE_NAME, parse
from .demo_picture import Comparison, draw_comparison

MODEL_FOLDER = Path(__file__).parent / "demo_model"
PROMPTS = (
    "a red circle on a blue background",
    "a yellow star on a purple background",
    "a large white heart on a black background",
    "a green triangle on a pink background",
    "a small orange ring on a teal background, on the left",
    "a blue cross on a yellow background",
)
GUIDANCE = 4.0
MEAN_TOLERANCE = 2.0  #: levels of 255: a pixel or two may move across an edge, the picture may not change


@dataclass(frozen=True)
class PictureSet:
    """Pictures [N, H, W, 3] in 0..1, the first call's time and the median of the later ones'."""

    pictures: np.ndarray
    first_s: float
    seconds: float


def load_pipeline(folder: Path, device: torch.device) -> Any:
    """The shipped pipeline, fp16 on CUDA and float32 on a CPU.

    Raises:
        FileNotFoundError: there is no pipeline in ``folder``.
    """
    if not (folder / "model_index.json").is_file():
        raise FileNotFoundError(f"there is no model in {folder}; `python -m benchmarks.train_demo_model` makes one")
    from diffusers import StableDiffusionPipeline
    from diffusers.utils import logging

    logging.disable_progress_bar()
    pipeline = StableDiffusionPipeline.from_pretrained(folder, safety_checker=None, local_files_only=True)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline.to(device, torch.float16 if device.type == "cuda" else torch.float32)


def make_pictures(pipeline: Any, prompts: Sequence[str], steps: int, name: str) -> np.ndarray:
    """One call for all prompts, with the seeds 0, 1, 2, ...; prints how far it is every few seconds."""
    printed_at = time.monotonic()

    def say(_: Any, step: int, __: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        nonlocal printed_at
        if time.monotonic() - printed_at > 3.0:
            print(f"  {name}: step {step + 1} of {steps}", flush=True)
            printed_at = time.monotonic()
        return tensors

    generators = [torch.Generator().manual_seed(seed) for seed in range(len(prompts))]
    options = {"num_inference_steps": steps, "guidance_scale": GUIDANCE, "generator": generators, "output_type": "np"}
    return np.asarray(pipeline(list(prompts), callback_on_step_end=say, **options).images, dtype=np.float32)


def _timed(device: torch.device, call: Callable[[], np.ndarray]) -> tuple[np.ndarray, float]:
    start = time.perf_counter()
    pictures = call()  # numpy at the end: the GPU is done then
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return pictures, time.perf_counter() - start


def picture_set(pipeline: Any, device: torch.device, steps: int, name: str) -> PictureSet:
    """One first call and then three (on a CPU: one) that are timed. The pictures are the last call's."""
    print(f"{name}: {len(PROMPTS)} pictures, {steps} steps ...", flush=True)
    _, first_s = _timed(device, lambda: make_pictures(pipeline, PROMPTS, steps, name))
    runs = [
        _timed(device, lambda: make_pictures(pipeline, PROMPTS, steps, name))
        for _ in range(3 if device.type == "cuda" else 1)
    ]
    return PictureSet(runs[-1][0], first_s, statistics.median(seconds for _, seconds in runs))


def describe(device: torch.device) -> list[str]:
    """What it ran on, and, without a GPU, what that means."""
    if device.type == "cuda":
        return [f"{torch.cuda.get_device_name(device)}, PyTorch {torch.__version__}, fp16"]
    return [
        f"CPU, PyTorch {torch.__version__}, float32",
        (
            "There is no GPU here: the traced and fused model ran with plain PyTorch operators on the CPU, without CUDA"
            " graphs. The pictures show that it is right; times would say nothing, and are left out."
        ),
    ]


def print_table(table: Sequence[Sequence[str]]) -> None:
    """Columns as wide as their widest cell; the first is set left, the others right."""
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    for row in table:
        print(
            "  ".join(
                cell.ljust(width) if not column else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
        )


def find_faults(comparison: Comparison, report: Any) -> list[str]:
    """What is wrong with the fast set: pictures that differ, or a model that was never fused."""
    faults = []
    if not comparison.mean_difference <= MEAN_TOLERANCE:
        faults.append(
            f"the pictures differ by {comparison.mean_difference:.2f} levels of 255 on average, at most"
            f" {MEAN_TOLERANCE:g} is fine"
        )
    if not np.isfinite(comparison.fast).all() or float(comparison.fast.std()) < 0.02:
        faults.append("the fast pictures are empty")
    for module in report.modules:
        if set(module.calls) == {"eager"}:
            faults.append(f"{module.name} ran eager only: {', '.join(module.reasons) or 'no reason given'}")
    return faults


def compare(device: torch.device, steps: int) -> tuple[Comparison, str, list[str]]:
    """The small model eager, then fast; the comparison, the report's first parts as text, and what is wrong."""
    import sfast_core

    pipeline = load_pipeline(MODEL_FOLDER, device)
    with torch.inference_mode():
        eager = picture_set(pipeline, device, steps, "eager")
        fast_pipeline = sfast_core.compile_pipeline(pipeline, sfast_core.CompileConfig(allow_cpu=True))
        fast = picture_set(fast_pipeline, device, steps, "fast")
    report = fast_pipeline.report()
    timed = device.type == "cuda"
    calls = f"All {len(PROMPTS)} pictures in one call of the pipeline, {steps} steps"
    comparison = Comparison(
        title="Fast Compile: the same pictures, eager and fast",
        prompts=PROMPTS,
        eager=eager.pictures,
        fast=fast.pictures,
        eager_seconds=eager.seconds if timed else None,
        fast_seconds=fast.seconds if timed else None,
        notes=[*describe(device), f"{calls}; the first fast call took {fast.first_s:.2f} s." if timed else f"{calls}."],
    )
    faults, parts = find_faults(comparison, report), report.parts()
    text = f"{parts['lead']}\n\nBy size:\n{parts['sizes']}"
    fast_pipeline.uninstall()  # which also empties the report
    print()
    if timed:
        print_table(
            [
                ("demo model, 64x64", "first call", "later calls", "speed-up"),
                ("eager", f"{eager.first_s:.2f} s", f"{eager.seconds:.3f} s", ""),
                ("fast", f"{fast.first_s:.2f} s", f"{fast.seconds:.3f} s", f"{eager.seconds / fast.seconds:.2f}x"),
            ]
        )
    print(
        f"The pictures differ by {comparison.largest_difference:.2g} of 255 levels at most, and by"
        f" {comparison.mean_difference:.1g} on average.\n"
    )
    return comparison, text, faults


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; 0 when all is well, 1 when something is wrong (said at the end)."""
    arguments = parse(argv)
    for name in ("TRANSFORMERS_VERBOSITY", "DIFFUSERS_VERBOSITY"):  # read when the libraries are imported
        os.environ.setdefault(name, "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    device = torch.device(arguments.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type == "cuda" and not torch.cuda.is_available():
        print("WRONG: PyTorch sees no NVIDIA GPU here; without --device cuda the demo runs on the CPU")
        return 1
    print("\n".join(describe(device)), flush=True)
    try:
        comparison, report, faults = compare(device, arguments.steps)
    except FileNotFoundError as error:
        print(f"WRONG: {error}")
        return 1
    print(report, flush=True)

    if device.type == "cuda" and not arguments.no_full_size:
        print()
        measured = demo_full_size.measure_all(device)
        rows = [found.row for found in measured if found.row]
        if rows:
            comparison = Comparison(**{**comparison.__dict__, "table": [demo_full_size.HEADER, *rows]})
            print()
            print_table([demo_full_size.HEADER, *rows])
        for found in measured:
            print(f"\n{found.report}" if found.report else "", flush=True)
        faults += [found.wrong for found in measured if found.wrong]

    path = arguments.out / PICTURE_NAME
    draw_comparison(comparison).save(path)
    print(f"\nwrote {path}", flush=True)
    for fault in faults:
        print(f"WRONG: {fault}", flush=True)
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
