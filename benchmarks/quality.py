"""``python -m benchmarks.quality``: exact, near-exact, fast and each of their parts beside eager, in one run: time,
error, memory, pictures.

``--demo``: pictures of the small model that ships with the pack, whose weights are trained. ``--models sdxl,sd3,flux``:
one forward at full size with random weights, on a GPU: a row of calls of each variant in turns, its error against the
same weights in float32, and what it holds.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

import sfast_core
from sfast_core import CompileConfig

from . import transformer
from .command import parser_of
from .demo import MODEL_FOLDER, load_pipeline
from .demo_data import captions
from .distance import distance
from .full_size import MODELS, FullSize, build_unet, inputs_for
from .machine import facts, write
from .picture_quality import psnr, ssim
from .tables import markdown

EAGER = "eager"
_Subject = tuple[torch.dtype, Callable[[torch.dtype], Any], Callable[[Any, torch.dtype], dict[str, Any]]]
#: By name; the last of each pair is whether calls are within a sampling, in which nobody writes to weights.
VARIANTS: dict[str, tuple[CompileConfig, bool]] = {
    "exact": (CompileConfig(), True),
    "near-exact": (CompileConfig(quality="near-exact"), True),
    "fast": (CompileConfig(quality="fast"), True),
    "all products in 8 bits": (
        CompileConfig(quality="fast", quality_parts=("products",), quality_layers=("*",), quality_budget=1.0),
        True,
    ),
    "sums in float16": (CompileConfig(quality="fast", quality_parts=("fp16_accumulation",)), True),
    "deep part used again": (CompileConfig(quality="fast", quality_parts=("reuse",)), True),
    "fast, and deep part used again": (
        CompileConfig(quality="fast", quality_parts=("products", "fp16_accumulation", "reuse")),
        True,
    ),
    "near-exact, weights made at each call": (CompileConfig(quality="near-exact"), False),
}
_CALLS, _ROUNDS = 6, 9
_GUIDANCE = 4.0
_LONG = 1000  #: steps of a pretended sampling, whose calls are all alike: each deep part is used as often as any


@dataclass
class Row:
    """One variant of one model. ``distance``: relative L2 of the result (of a forward, or of the final latent) to
    eager's; ``error``: to float32's.
    """

    model: str
    variant: str
    ms: float = 0.0
    times_eager: float = 0.0
    distance: float = 0.0
    error: float | None = None
    psnr: float | None = None
    worst_psnr: float | None = None
    ssim: float | None = None
    peak_bytes: int = 0
    copied_bytes: int = 0
    first_calls_s: float = 0.0
    what: str = ""


def _said(handle: Any) -> str:
    found = dict.fromkeys(clause for signature in handle.engine.report.signatures for clause in signature.lossy)
    reused = [
        f"{signature.reused} of {signature.calls} calls used it"
        for signature in handle.engine.report.signatures
        if signature.reused
    ]
    return "; ".join([*found, *reused])


# -- pictures of the demo's model ----------------------------------------------------------------------------------


def demo(device: torch.device, prompts: int, steps: int) -> list[Row]:
    """The pictures of so many prompts, each with a seed of its own.
    The text encoder and the VAE are eager throughout.
    """
    pipeline = load_pipeline(MODEL_FOLDER, device)
    texts = captions()
    texts = texts[:: max(1, len(texts) // prompts)][:prompts]
    eager, seconds = _latents(pipeline, texts, steps)
    pictures = _decoded(pipeline, eager)
    rows = [Row("demo", EAGER, 1e3 * seconds, 1.0)]
    for name, (config, sampling) in VARIANTS.items():
        if config.quality != "exact":  # a small model's layers gain nothing: they are named
            config = config.replace(quality_layers=("*",))
        handle = sfast_core.compile(pipeline.unet, config.replace(allow_cpu=True), name)
        with handle.sampling(2) if sampling else contextlib.nullcontext():
            start = time.perf_counter()
            _latents(pipeline, texts, 2)
            first = time.perf_counter() - start
        with handle.sampling(steps) if sampling else contextlib.nullcontext():
            latents, seconds = _latents(pipeline, texts, steps)
        mine = _decoded(pipeline, latents)
        decibels = psnr(mine, pictures)
        finite = [each for each in decibels if each != float("inf")]
        row = Row(
            "demo",
            name,
            1e3 * seconds,
            rows[0].ms / (1e3 * seconds),
            distance(latents.double(), eager.double()),
            None,
            statistics.mean(finite or [100.0]),
        )
        row.worst_psnr, row.ssim = min(decibels), statistics.mean(ssim(mine, pictures))
        row.copied_bytes, row.first_calls_s, row.what = handle.engine.report.copied_bytes, first, _said(handle)
        rows.append(row)
        print(
            f"  {name}: {row.distance:.2e} of the latent, PSNR {row.psnr:.1f}, at least {row.worst_psnr:.1f}",
            flush=True,
        )
        handle.uninstall()
    return rows


def _latents(pipeline: Any, texts: Sequence[str], steps: int) -> tuple[torch.Tensor, float]:
    """The final latents, and the seconds of a step."""
    generators = [torch.Generator().manual_seed(seed) for seed in range(len(texts))]
    options = {
        "num_inference_steps": steps,
        "guidance_scale": _GUIDANCE,
        "generator": generators,
        "output_type": "latent",
    }
    start = time.perf_counter()
    with torch.inference_mode():
        latents = pipeline(list(texts), **options).images
    _wait(latents.device)
    return latents, (time.perf_counter() - start) / steps


def _decoded(pipeline: Any, latents: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        images = pipeline.vae.decode(latents / pipeline.vae.config.scaling_factor).sample
    return (images.float() / 2 + 0.5).clamp(0, 1).cpu()


# -- whole forwards with random weights ----------------------------------------------------------------------------


def _subjects() -> dict[str, _Subject]:
    device = torch.device("cuda")

    def unet(model: FullSize) -> _Subject:
        return (
            torch.float16,
            lambda dtype: build_unet(model.config, device, dtype),
            lambda made, dtype: inputs_for(made, device, dtype),
        )

    return {
        **{name: unet(model) for name, model in zip(("sd15", "sdxl"), MODELS, strict=True)},
        "sd3": (torch.bfloat16, transformer._build_sd3, transformer._sd3_inputs),
        "flux": (torch.bfloat16, transformer._build_flux, transformer._flux_inputs),
    }


def forwards(name: str, variants: Sequence[str]) -> list[Row]:
    """Each variant has a copy of the weights; rounds alternate between them."""
    dtype, build, make_inputs = _subjects()[name]
    module = build(dtype)
    inputs = make_inputs(module, dtype)
    with torch.inference_mode():
        truth = _result(copy.deepcopy(module).float(), _wide(inputs))
        _free()
        eager = _result(module, inputs)
        rows = [Row(name, EAGER, error=distance(eager.double(), truth.double()))]
        running: list[tuple[Row, Callable[[], Any], Any]] = [
            (rows[0], partial(module, **inputs), contextlib.nullcontext)
        ]
        for variant in variants:
            config, sampling = VARIANTS[variant]
            handle = sfast_core.compile(copy.deepcopy(module), config, f"{name}, {variant}")
            scope = partial(handle.sampling, _LONG) if sampling else contextlib.nullcontext
            torch.cuda.reset_peak_memory_stats()
            before, start = torch.cuda.memory_allocated(), time.perf_counter()
            with scope():
                for _ in range(4):
                    result = _result(handle, inputs)
            _wait(result.device)
            row = Row(
                name,
                variant,
                distance=distance(result.double(), eager.double()),
                error=distance(result.double(), truth.double()),
                first_calls_s=time.perf_counter() - start,
            )
            row.peak_bytes = torch.cuda.max_memory_allocated() - before
            row.copied_bytes, row.what = handle.engine.report.copied_bytes, _said(handle)
            rows.append(row)
            running.append((row, partial(handle, **inputs), scope))
            print(
                f"  {variant}: {row.error:.2e} to float32, {row.distance:.2e} to eager, {row.first_calls_s:.1f} s;"
                f" {row.what}",
                flush=True,
            )
        times: dict[str, list[float]] = {row.variant: [] for row in rows}
        for turn in range(_ROUNDS):
            for row, call, scope in running[turn % len(running) :] + running[: turn % len(running)]:
                with scope():
                    call()
                    times[row.variant].append(_timed(call))
    for row in rows:
        row.ms = statistics.median(times[row.variant])
        row.times_eager = statistics.median(times[EAGER]) / row.ms
    return rows


def _timed(call: Callable[[], Any]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(_CALLS):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / _CALLS


def _result(module: Any, inputs: dict[str, Any]) -> torch.Tensor:
    found = module(**inputs)
    return (found if isinstance(found, torch.Tensor) else found[0]).clone()


def _wide(inputs: Any) -> Any:
    if isinstance(inputs, dict):
        return {name: _wide(each) for name, each in inputs.items()}
    return inputs.float() if isinstance(inputs, torch.Tensor) and inputs.is_floating_point() else inputs


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _free() -> None:
    gc.collect()
    torch.cuda.empty_cache()


# -- the table -----------------------------------------------------------------------------------------------------


def table(rows: Sequence[Row]) -> str:
    """As Markdown."""
    head = ["model", "variant", "ms", "x eager", "distance to eager", "error to float32", "PSNR, mean and least"]
    return markdown([*head, "SSIM", "8-bit copies", "peak memory"], map(_cells, rows))


def _cells(row: Row) -> list[str]:
    pictures = "" if row.psnr is None or row.worst_psnr is None else f"{row.psnr:.1f}, {row.worst_psnr:.1f}"
    error, ssim = "" if row.error is None else f"{row.error:.1e}", "" if row.ssim is None else f"{row.ssim:.4f}"
    cells = [row.model, row.variant, f"{row.ms:.2f}", f"{row.times_eager:.2f}", f"{row.distance:.1e}", error, pictures]
    return [*cells, ssim, f"{row.copied_bytes / 2**20:.0f} MB", f"{row.peak_bytes / 2**30:.2f} GiB"]


def _rows(arguments: argparse.Namespace) -> Iterator[Row]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if arguments.demo:
        yield from demo(device, arguments.prompts, arguments.steps)
    for name in filter(None, arguments.models.split(",")):
        print(name, flush=True)
        yield from forwards(
            name, [each.strip() for each in arguments.variants.split(";")] if arguments.variants else list(VARIANTS)
        )
        _free()


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is asked for, print the table and write it with the machine."""
    parser = parser_of("quality", __doc__, "docs/measured")
    parser.add_argument("--demo", action="store_true", help="pictures of the demo's model")
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument(
        "--models", default="", help=f"of {', '.join(('sd15', 'sdxl', 'sd3', 'flux'))}, separated by commas"
    )
    parser.add_argument("--variants", default="", help=f"of {'; '.join(VARIANTS)}, separated by semicolons")
    arguments = parser.parse_args(argv)
    rows = list(_rows(arguments))
    for row in rows:
        print(f"{row.model}, {row.variant}: {row.what or 'exact'}")
    print(write(arguments.out, "quality", rows, table(rows), facts()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
