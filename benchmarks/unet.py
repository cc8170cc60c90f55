"""``python -m benchmarks.unet``: one UNet forward at full size, eager and torch.compile beside ours, interleaved in one process.

Prints a table and writes CSV: time (median of rounds that alternate between the providers), time of the first calls until steady state,
peak memory of the forward, and the error against the same weights in float32. Random weights, fp16, batch 2 (both halves of CFG).
"""

from __future__ import annotations

import argparse
import copy
import logging
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from .full_size import MODELS, FullSize, build_unet, inputs_for
from .machine import facts, write
from .memory import in_own_process

PROVIDERS = ("eager", "compile", "compile-reduce-overhead", "ours")
ALONE = ("eager", "ours")  #: whose memory is counted in a process of its own
_ROUNDS = 15
_CALLS = 8
_WARM_UP_CALLS = 4


@dataclass
class Row:
    """One provider's outcome on one model."""

    model: str
    provider: str
    ms: float = 0.0
    first_calls_s: float = 0.0
    peak_bytes: int = 0
    steady_peak_bytes: int = 0
    error: float = 0.0
    rounds_ms: list[float] = field(default_factory=list)


@dataclass
class _Provider:
    row: Row
    forward: Callable[[], torch.Tensor]
    report: Callable[[], str] | None = None


def _make(name: str, model: FullSize, unet: Any) -> _Provider:
    inputs = inputs_for(unet, torch.device("cuda"), torch.float16)
    report = None
    if name == "compile":
        unet = torch.compile(unet)
    elif name == "compile-reduce-overhead":
        unet = torch.compile(unet.to(memory_format=torch.channels_last), mode="reduce-overhead")
    elif name == "ours":
        import sfast_core

        unet = sfast_core.compile(unet, name=model.name)
        report = lambda: unet.report().text()  # noqa: E731

    def forward() -> torch.Tensor:
        result: torch.Tensor = unet(**inputs)[0]
        return result

    return _Provider(Row(model.name, name), forward, report)


def _prepare(provider: _Provider) -> torch.Tensor:
    """Warm up, note the first calls' time, return one result."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    start = time.perf_counter()
    for _ in range(_WARM_UP_CALLS):
        provider.forward()
        torch.cuda.synchronize()
    provider.row.first_calls_s = time.perf_counter() - start
    return provider.forward().float().clone()


def _round(provider: _Provider) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(_CALLS):
        provider.forward()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / _CALLS


@torch.no_grad()
def measure(model: FullSize, names: list[str], profile: Path | None, count_memory: bool = True) -> list[Row]:
    """Every provider on one model. Each has a copy of the weights of its own."""
    original = build_unet(model.config, torch.device("cuda"), torch.float16)
    exact = _in_float32(original, model)
    providers = []
    for name in names:
        print(f"{model.name}: {name} ...", flush=True)
        memory = in_own_process(model.name, name) if count_memory and name in ALONE else {}
        provider = _make(name, model, copy.deepcopy(original))
        provider.row.peak_bytes = memory.get("peak_bytes", 0)
        provider.row.steady_peak_bytes = memory.get("steady_peak_bytes", 0)
        result = _prepare(provider)
        provider.row.error = float((result - exact).norm() / exact.norm())
        providers.append(provider)
    for _ in range(_ROUNDS):
        for provider in providers:
            provider.row.rounds_ms.append(_round(provider))
    for provider in providers:
        provider.row.ms = statistics.median(provider.row.rounds_ms)
        if provider.report:
            print(provider.report(), flush=True)
        if profile and provider.row.provider == "ours":
            _profile(provider, profile / f"profile-{model.name.replace(' ', '-')}.txt")
    return [provider.row for provider in providers]


def _in_float32(original: Any, model: FullSize) -> torch.Tensor:
    exact = copy.deepcopy(original).float()
    inputs = inputs_for(original, torch.device("cuda"), torch.float16)
    inputs = {key: _float(value) for key, value in inputs.items()}
    result: torch.Tensor = exact(**inputs)[0].clone()
    del exact
    torch.cuda.empty_cache()
    return result


def _float(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _float(item) for key, item in value.items()}
    return value.float() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def _profile(provider: _Provider, path: Path) -> None:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(5):
            provider.forward()
        torch.cuda.synchronize()
    path.write_text(profiler.key_averages().table(sort_by="self_cuda_time_total", row_limit=70, max_name_column_width=110), "utf-8")


def table(rows: list[Row]) -> str:
    """The rows as a Markdown table."""
    lines = [
        "| UNet, fp16, batch 2 | provider | ms | x eager | first calls | peak memory | later calls | error to float32 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        eager = next((other.ms for other in rows if other.model == row.model and other.provider == "eager"), row.ms)
        memory = [f"{count / 2**30:.2f} GiB" if count else "" for count in (row.peak_bytes, row.steady_peak_bytes)]
        cells = [row.model, row.provider, f"{row.ms:.2f}", f"{eager / row.ms:.2f}", f"{row.first_calls_s:.1f} s", *memory, f"{row.error:.1e}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Parse arguments, measure, print, write."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.unet", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default="SD1.5,SDXL", help="which models, by the beginning of their names")
    parser.add_argument("--providers", default=",".join(PROVIDERS), help="which providers, in order")
    parser.add_argument("--out", type=Path, default=Path("."), help="folder for unet.csv and the profiles")
    parser.add_argument("--profile", action="store_true", help="also write the kernels of our replay, by time")
    parser.add_argument("--no-memory", action="store_true", help="leave out the memory, which takes a process per model and provider")
    parser.add_argument("--verbose", action="store_true", help="log what is compiled and measured")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks.unet needs a CUDA device")
    if args.verbose:
        logging.basicConfig(level=logging.WARNING)
        logging.getLogger("fast_compile").setLevel(logging.DEBUG)
    args.out.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    for model in MODELS:
        if any(model.name.startswith(name) for name in args.models.split(",")):
            rows += measure(model, args.providers.split(","), args.out if args.profile else None, not args.no_memory)
            torch.cuda.empty_cache()
    machine = facts()
    print("\n" + write(args.out, "unet", rows, table(rows), machine))


if __name__ == "__main__":
    main()
