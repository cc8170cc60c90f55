"""``python -m benchmarks.several_gpus``: one call on one GPU and on several, in one run, rounds in turn.

In parts of a batch: SDXL at 1024x1024 and SD1.5 at 512x512 with guidance's two prompts, SDXL for two pictures, and SD3
medium; SDXL at cfg 1, which isn't cut, tells what a half of it takes alone. Along tokens: the whole of Flux at
1024x1024 and of Wan 14B at 832x480 with 81 frames, one picture or video at cfg 1, and SD3 medium for one picture. In
stripes: SDXL's VAE, a picture of 2048x2048. Random weights, the same for both. A call is waited for, as a sampler's
step mostly is. Prints a table and writes CSV and Markdown: the time of a call, the speed-up, how far the results are
from one GPU's, whether two calls gave the same bits, what the first calls took, and the most memory that each further
GPU held.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from .command import parser_of
from .distance import distance
from .full_size import MODELS, build_unet, inputs_for, new_modules
from .machine import facts, write
from .tables import markdown
from .transformer import _build_flux, _build_sd3, _flux_inputs, _random, _sd3_inputs
from .vae import _build as build_decoder

_ROUNDS = 15
_CALLS = 8
_WARM_UP_CALLS = 4


@dataclass
class Row:
    """One model on so many GPUs."""

    model: str
    batch: int
    gpus: int
    ms: float = 0.0
    times: float = 1.0
    distance: float = 0.0
    same_bits: bool = True
    first_calls_s: float = 0.0
    others_gib: list[float] = field(default_factory=list)
    said: str = ""
    rounds_ms: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Subject:
    """What is measured: makes a module, and the keyword arguments of a call; so many calls in a round."""

    name: str
    batch: int
    build: Callable[[], Any]
    inputs: Callable[[Any], dict[str, Any]]
    calls: int = _CALLS


def subjects() -> list[Subject]:
    """All of them."""
    gpu, half = torch.device("cuda", 0), torch.float16
    sd15, sdxl = MODELS
    return [
        Subject(
            "SDXL 1024x1024, cfg 1",
            1,
            lambda: build_unet(sdxl.config, gpu, half),
            lambda unet: inputs_for(unet, gpu, half, 1),
        ),
        Subject(
            "SDXL 1024x1024, cfg 7",
            2,
            lambda: build_unet(sdxl.config, gpu, half),
            lambda unet: inputs_for(unet, gpu, half),
        ),
        Subject(
            "SDXL 1024x1024, cfg 7, 2 pictures",
            4,
            lambda: build_unet(sdxl.config, gpu, half),
            lambda unet: inputs_for(unet, gpu, half, 4),
        ),
        Subject(
            "SD1.5 512x512, cfg 7",
            2,
            lambda: build_unet(sd15.config, gpu, half),
            lambda unet: inputs_for(unet, gpu, half),
        ),
        Subject(
            "SD3 medium 1024x1024, cfg 5",
            2,
            lambda: _build_sd3(torch.bfloat16),
            lambda model: _sd3_inputs(model, torch.bfloat16),
        ),
        Subject(
            "SD3 medium 1024x1024, cfg 1",
            1,
            lambda: _build_sd3(torch.bfloat16),
            lambda model: _first_of(_sd3_inputs(model, torch.bfloat16)),
        ),
        Subject(
            "Flux dev 1024x1024, cfg 1",
            1,
            lambda: _build_flux(torch.bfloat16, 19, 38),
            lambda model: _flux_inputs(model, torch.bfloat16),
        ),
        Subject("Wan 14B 832x480, 81 frames, cfg 1", 1, _build_wan, _wan_inputs, calls=1),
        Subject("SDXL VAE decode 2048x2048", 1, lambda: build_decoder(half), _latent_2048),
    ]


def _build_wan() -> Any:
    from diffusers import WanTransformer3DModel

    torch.manual_seed(0)
    with new_modules(torch.device("cuda", 0), torch.bfloat16):
        model = WanTransformer3DModel()
    return model.eval().requires_grad_(False)


def _wan_inputs(_: Any) -> dict[str, Any]:
    randn = _random(torch.bfloat16)
    return {
        "hidden_states": randn(1, 16, 21, 60, 104),
        "encoder_hidden_states": randn(1, 512, 4096),
        "timestep": torch.tensor([500.0], device="cuda"),
        "return_dict": False,
    }


def _latent_2048(_: Any) -> dict[str, Any]:
    return {"sample": _random(torch.float16)(1, 4, 256, 256)}


def _first_of(given: dict[str, Any]) -> dict[str, Any]:
    """Of two prompts the first."""
    return {name: value[:1] if isinstance(value, torch.Tensor) else value for name, value in given.items()}


@torch.no_grad()
def measure(subject: Subject, gpus: int, rounds: int = _ROUNDS) -> list[Row]:
    """One GPU beside ``gpus``."""
    import sfast_core

    for index in range(gpus):
        torch.zeros(1, device=f"cuda:{index}")  # its memory has statistics from its first use on
        torch.cuda.reset_peak_memory_stats(index)
    module = subject.build()
    modules = [module, copy.deepcopy(module)]
    inputs = subject.inputs(module)
    handles = [sfast_core.compile(modules[0]), sfast_core.compile(modules[1], devices=gpus)]
    rows = [Row(subject.name, subject.batch, 1), Row(subject.name, subject.batch, gpus)]
    results = []
    for handle, row in zip(handles, rows, strict=True):
        start = time.perf_counter()
        with handle.sampling():
            made = [_result(handle(**inputs)) for _ in range(_WARM_UP_CALLS)]
            _wait()
        row.first_calls_s = time.perf_counter() - start
        row.same_bits = all(torch.equal(each, made[0]) for each in made)
        results.append(made[0].float())
    rows[1].distance = distance(results[1], results[0])
    for turn in range(rounds):
        for handle, row in list(zip(handles, rows, strict=True))[:: 1 if turn % 2 else -1]:
            with handle.sampling():
                handle(**inputs)
                _wait()
                start = time.perf_counter()
                for _ in range(subject.calls):
                    handle(**inputs)
                    torch.cuda.synchronize(0)
            row.rounds_ms.append((time.perf_counter() - start) * 1000 / subject.calls)
    for handle, row in zip(handles, rows, strict=True):
        row.ms, row.said = statistics.median(row.rounds_ms), "; ".join(handle.engine.report.several)
        row.times = rows[0].ms / row.ms
        row.others_gib = [torch.cuda.max_memory_allocated(index) / (1 << 30) for index in range(1, row.gpus)]
        handle.uninstall()
    return rows


def _result(result: Any) -> torch.Tensor:
    return (result[0] if isinstance(result, tuple) else result).clone()


def _wait() -> None:
    for index in range(torch.cuda.device_count()):
        torch.cuda.synchronize(index)


def link(gpus: int) -> str:
    """Whether the GPUs read one another's memory, and how fast a copy is."""
    there = all(torch.cuda.can_device_access_peer(0, index) for index in range(1, gpus))
    here, other = (
        torch.empty(1 << 30, dtype=torch.uint8, device="cuda:0"),
        torch.empty(1 << 30, dtype=torch.uint8, device="cuda:1"),
    )
    for _ in range(2):
        _wait()
        start = time.perf_counter()
        other.copy_(here)
        _wait()
        seconds = time.perf_counter() - start
    return f"peer access {'yes' if there else 'no'}, a copy {1.07 / seconds:.0f} GB/s"


def table(rows: list[Row]) -> str:
    """The rows as a Markdown table."""
    header = ["model", "batch", "GPUs", "ms a call", "x one GPU", "distance to one GPU's", "same bits", "first 4 calls"]
    header.append("GiB on each further GPU")
    found = []
    for row in rows:
        times, apart = (f"{row.times:.2f}", f"{row.distance:.1e}") if row.gpus > 1 else ("", "")
        same, others = "yes" if row.same_bits else "no", ", ".join(f"{each:.1f}" for each in row.others_gib)
        cells = [row.model, row.batch, row.gpus, f"{row.ms:.2f}", times, apart, same]
        found.append([*cells, f"{row.first_calls_s:.1f} s", others])
    return markdown(header, found)


def main() -> None:
    """Parse arguments, measure, print, write."""
    parser = parser_of("several_gpus", __doc__)
    parser.add_argument("--models", help="which, by the beginnings of their names, separated by commas (default: all)")
    parser.add_argument("--gpus", type=_numbers, default=[2], help="how many; several with commas between them (2)")
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help=f"how many ({_ROUNDS})")
    args = parser.parse_args()
    most = max(args.gpus)
    if torch.cuda.device_count() < most:
        raise SystemExit(f"benchmarks.several_gpus needs {most} GPUs, there are {torch.cuda.device_count()}")
    rows = []
    for subject in subjects():
        if args.models is not None and not any(subject.name.startswith(name) for name in args.models.split(",")):
            continue
        for gpus in args.gpus:
            rows += measure(subject, gpus, args.rounds)
            for row in rows[-2:]:
                print(f"{row.model}: {row.gpus}: {row.ms:.2f} ms, {row.times:.2f} x, {row.said}", flush=True)
            torch.cuda.empty_cache()
    if rows:
        print(write(args.out, "several_gpus", rows, table(rows), {**facts(), "link": link(most)}))


def _numbers(text: str) -> list[int]:
    """``"2,4"`` as numbers of GPUs."""
    numbers = [int(number) for number in text.split(",")]
    if min(numbers) < 2:
        raise argparse.ArgumentTypeError(f"from 2 on, not {text!r}")
    return numbers


if __name__ == "__main__":
    main()
