"""``python -m benchmarks.memory``: the GPU memory of one UNet's calls by eager and by ours, each alone in its process.

``peak_bytes`` is the most that PyTorch had allocated at any time from the model's making on, tracing, measuring and
capturing included; ``steady_peak_bytes`` that of later calls, with what captured graphs hold (``graph_bytes``). Prints
a table and writes CSV and Markdown.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass

import torch

from .command import need_cuda, parser_of
from .full_size import MODELS, build_unet, inputs_for
from .machine import facts, write
from .tables import markdown

PROVIDERS = ("eager", "ours")
_CALLS = 4


@dataclass
class Row:
    """One provider on one model."""

    model: str
    provider: str
    weights_bytes: int
    peak_bytes: int
    steady_peak_bytes: int
    graph_bytes: int


@torch.no_grad()
def measure(name: str, provider: str) -> dict[str, int]:
    """Run one provider on one model and count."""
    model = next(model for model in MODELS if model.name == name)
    device = torch.device("cuda")
    unet = build_unet(model.config, device, torch.float16)
    inputs = inputs_for(unet, device, torch.float16)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    weights = torch.cuda.memory_allocated()
    if provider == "ours":
        import sfast_core

        unet = sfast_core.compile(unet)
    for _ in range(_CALLS):
        unet(**inputs)
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_reserved()
    unet(**inputs)
    torch.cuda.synchronize()
    return {
        "weights_bytes": weights,
        "peak_bytes": peak,
        "steady_peak_bytes": max(held, torch.cuda.max_memory_allocated()),
        "graph_bytes": unet.report().modules[0].graph_bytes if provider == "ours" else 0,
    }


def in_own_process(name: str, provider: str) -> dict[str, int]:
    """As :func:`measure`, in a new process.

    Raises:
        RuntimeError: it failed; the message holds its output.
    """
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.memory", "--one", name, provider],
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode:
        raise RuntimeError(f"benchmarks.memory {name} {provider}: {run.stderr[-2000:]}")
    found: dict[str, int] = json.loads(run.stdout.splitlines()[-1])
    return found


def table(rows: list[Row]) -> str:
    """The rows as a Markdown table."""
    header = ["UNet, fp16, batch 2", "provider", "weights", "peak memory", "x eager", "later calls", "of these, graphs"]
    found = []
    for row in rows:
        eager = next(
            (other.peak_bytes for other in rows if (other.model, other.provider) == (row.model, "eager")),
            row.peak_bytes,
        )
        weights, peak, later = (
            f"{count / 2**30:.2f} GiB" for count in (row.weights_bytes, row.peak_bytes, row.steady_peak_bytes)
        )
        graphs = f"{row.graph_bytes / 2**20:.0f} MiB" if row.graph_bytes else ""
        found.append([row.model, row.provider, weights, peak, f"{row.peak_bytes / eager:.2f}", later, graphs])
    return markdown(header, found)


def main() -> None:
    """Parse arguments, count, print, write."""
    parser = parser_of("memory", __doc__)
    parser.add_argument("--models", help="which models, by the beginning of their names (default: all)")
    parser.add_argument(
        "--one", nargs=2, metavar=("MODEL", "PROVIDER"), help="count one, in this process, and print JSON"
    )
    args = parser.parse_args()
    need_cuda("memory")
    if args.one:
        print(json.dumps(measure(*args.one)))
        return
    rows = []
    for model in MODELS:
        if args.models is None or any(model.name.startswith(beginning) for beginning in args.models.split(",")):
            rows += [Row(model.name, provider, **in_own_process(model.name, provider)) for provider in PROVIDERS]
    if rows:
        print(write(args.out, "memory", rows, table(rows), facts()))


if __name__ == "__main__":
    main()
