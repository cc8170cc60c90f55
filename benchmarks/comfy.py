"""``COMFYUI_PATH=... python -m benchmarks.comfy``: sampling runs of a real ComfyUI, plain and through the node.

Full-size SD1.5 and SDXL with random weights, ComfyUI's own loader, sampler and model management, no server; each model
under both of PyTorch's allocators (ComfyUI's default is cudaMallocAsync), in a process of its own. Prints a table and
writes CSV and Markdown. ``--variants`` may name ``compile`` too: ComfyUI's own TorchCompileModel node.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass

from .command import comfyui_for, need_cuda, parser_of, version
from .machine import facts, write
from .tables import markdown

MODELS = ("SD1.5", "SDXL")
VARIANTS = ("eager", "compile", "ours")
ALLOCATORS = ("native", "cudaMallocAsync")


@dataclass
class Row:
    """One variant of one model under one allocator."""

    model: str
    allocator: str
    variant: str
    steps: int
    first_s: float
    sampling_s: float
    peak_bytes: int
    distance: float  #: of the latent to eager's, relative L2


def measure(model: str, allocator: str, variants: str, steps: int, images: int) -> list[Row]:
    """Every variant of one model, one after the other, in a new process.

    Raises:
        RuntimeError: it failed; the message holds the end of its output.
    """
    command = [sys.executable, "-m", "benchmarks.comfy_run", model, variants, str(steps), str(images)]
    run = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTORCH_CUDA_ALLOC_CONF": f"backend:{allocator}"},
        check=False,
    )
    if run.returncode:
        raise RuntimeError(f"{' '.join(command[2:])}: {run.stderr[-2000:]}")
    return [
        Row(model=model, allocator=allocator, steps=steps, **found) for found in json.loads(run.stdout.splitlines()[-1])
    ]


def table(rows: list[Row]) -> str:
    """The rows as a Markdown table."""
    head = [f"ComfyUI, {rows[0].steps} steps euler, cfg 7", "allocator", "variant", "first image", "then", "it/s"]
    head += ["x eager", "peak memory", "distance to eager"]
    found = []
    for row in rows:
        alike = [other for other in rows if (other.model, other.allocator) == (row.model, row.allocator)]
        eager = next((other.sampling_s for other in alike if other.variant == "eager"), row.sampling_s)
        times = [f"{row.first_s:.1f} s", f"{row.sampling_s:.3f} s", f"{row.steps / row.sampling_s:.1f}"]
        cells = [row.model, row.allocator, row.variant, *times, f"{eager / row.sampling_s:.2f}"]
        found.append([*cells, f"{row.peak_bytes / 2**30:.2f} GiB", f"{row.distance:.1e}"])
    return markdown(head, found)


def main() -> None:
    """Parse arguments, measure, print, write."""
    parser = parser_of("comfy", __doc__)
    parser.add_argument("--models", default=",".join(MODELS), help="which models")
    parser.add_argument("--variants", default="eager,ours", help=f"of {', '.join(VARIANTS)}")
    parser.add_argument("--allocators", default=",".join(ALLOCATORS), help="which of PyTorch's allocators")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--images", type=int, default=3, help="sampling runs after the first")
    args = parser.parse_args()
    comfyui = comfyui_for("comfy")
    need_cuda("comfy")
    machine = {"ComfyUI": version(comfyui), **facts()}
    rows: list[Row] = []
    for model in args.models.split(","):
        for allocator in args.allocators.split(","):
            print(f"{model}, {allocator}: {args.variants} ...", flush=True)
            rows += measure(model, allocator, args.variants, args.steps, args.images)
            # after each: a run that is cut keeps what it has
            text = write(args.out, "comfy", rows, table(rows), machine)
    print("\n" + text)


if __name__ == "__main__":
    main()
