"""``COMFYUI_PATH=... python -m benchmarks.quantised``: diffusion transformers from 8-bit checkpoints in a real ComfyUI, plain and through the node.

For each family and format ComfyUI's own path on the same weights, and ours; bf16 beside them. A step is what one more sampling step takes, with
the sampler around it. Errors are relative L2 distances of a step's result to ComfyUI's own in bf16, and of ours to ComfyUI's on the same format.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .comfy import version
from .comfy_variant import fast_compile
from .machine import facts, write
from .quantised_models import FAMILIES, FORMATS, Family, load, prompt, quantised, weights_of

_VARIANTS = {"comfyui": lambda patcher: patcher, "ours": fast_compile}


@dataclass
class Row:
    """One format of one family, by one variant."""

    model: str
    format: str
    variant: str
    step_ms: float
    first_s: float
    peak_bytes: int
    to_bf16: float  #: of the latent behind one step to ComfyUI's in bf16, relative L2
    to_comfyui: float  #: to ComfyUI's in the same format


def measure(name: str, formats: list[str], steps: int, device: torch.device) -> list[Row]:
    """Every format and variant of one family."""
    family = FAMILIES[name]
    weights = weights_of(family, device)
    rows: list[Row] = []
    exact = None
    for kind in formats:
        patcher, theirs = load(family, quantised(weights, FORMATS[kind]), device), None
        for variant, prepared in _VARIANTS.items():
            model = prepared(patcher.clone())
            torch.cuda.reset_peak_memory_stats()
            torch.cuda.synchronize()
            start = time.perf_counter()
            _sample(model, family, 1)
            first = time.perf_counter() - start
            _sample(model, family, steps)
            result = _sample(model, family, 1)[0]
            short, long = ([_sample(model, family, count)[1] for _ in range(5)] for count in (1, steps))
            exact = result if exact is None else exact
            theirs = result if theirs is None else theirs
            step = (statistics.median(long) - statistics.median(short)) / (steps - 1) * 1e3
            peak = torch.cuda.max_memory_allocated()
            rows.append(Row(name, kind, variant, step, first, peak, _distance(result, exact), _distance(result, theirs)))
        del patcher, model
        torch.cuda.empty_cache()
    return rows


def _sample(patcher: Any, family: Family, steps: int) -> tuple[torch.Tensor, float]:
    """The latent, and the seconds that it took."""
    import comfy.sample

    latent = torch.zeros(family.latent)
    noise = comfy.sample.prepare_noise(latent, 0)
    torch.cuda.synchronize()
    start = time.perf_counter()
    result = comfy.sample.sample(
        patcher, noise, steps, family.cfg, "euler", "simple", prompt(family, 1), prompt(family, 2), latent, disable_pbar=True, seed=0
    )
    torch.cuda.synchronize()
    return result.float().cpu(), time.perf_counter() - start


def _distance(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((mine - theirs).norm() / theirs.norm())


def table(rows: list[Row]) -> str:
    """The rows as a Markdown table."""
    lines = ["| a step | format | variant | ms | first call | peak memory | distance to bf16 | to ComfyUI's |", "|---|---|---|---|---|---|---|---|"]
    for row in rows:
        cells = [row.model, row.format, row.variant, f"{row.step_ms:.1f}", f"{row.first_s:.1f} s", f"{row.peak_bytes / 2**30:.2f} GiB"]
        lines.append(f"| {' | '.join([*cells, f'{row.to_bf16:.1e}', f'{row.to_comfyui:.1e}'])} |")
    return "\n".join(lines)


def main() -> None:
    """Parse arguments, measure, print, write."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.quantised", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default=";".join(FAMILIES), help="which families, with semicolons between them; the beginning of a name will do")
    parser.add_argument("--formats", default=",".join(FORMATS), help=f"of {', '.join(FORMATS)}")
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--out", type=Path, default=Path("."), help="folder for quantised.csv and quantised.md")
    args = parser.parse_args()
    if "COMFYUI_PATH" not in os.environ or not torch.cuda.is_available():
        raise SystemExit("benchmarks.quantised needs COMFYUI_PATH, the folder of a ComfyUI 0.33 or newer, and a CUDA device")
    sys.path.insert(0, os.environ["COMFYUI_PATH"])
    import comfy.options  # noqa: F401  (it leaves this program's arguments alone)

    machine = {"ComfyUI": version(Path(os.environ["COMFYUI_PATH"])), **facts()}
    names = [name for name in FAMILIES if any(name.startswith(asked) for asked in args.models.split(";"))]
    rows: list[Row] = []
    for name in names:
        print(f"{name}: {args.formats} ...", flush=True)
        with torch.no_grad():  # PyTorch 2.13 makes no parameter of a tensor of a class of its own in inference mode
            rows += measure(name, args.formats.split(","), args.steps, torch.device("cuda"))
        text = write(args.out, "quantised", rows, table(rows), machine)  # after each: a run that is cut keeps what it has
    print("\n" + text)


if __name__ == "__main__":
    main()
