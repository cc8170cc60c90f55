"""A module's forward by several providers, interleaved in one process: what ``benchmarks.unet``, ``transformer``,
``vae``, ``text_encoder`` and ``controlnet`` have in common.

Prints a table and writes CSV: time of a call in a row of them (median of rounds that alternate between the providers,
in changing order), time of the first calls until steady state, peak memory where it is counted, and the error against
the same weights in float32.
"""

from __future__ import annotations

import copy
import faulthandler
import logging
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from .command import need_cuda, parser_of
from .distance import distance
from .kernels import KernelRow, kernel_rows, kernel_table
from .machine import facts, write
from .tables import markdown

PROVIDERS = ("eager", "compile", "compile-reduce-overhead", "ours")
_LEAST_ROUNDS = 15
_CALLS = 8
_WARM_UP_CALLS = 4
_PROFILED_CALLS = 5


@dataclass(frozen=True)
class Subject:
    """What is measured: a module with random weights on the GPU, and the keyword arguments of one call.

    ``parts``: names of the submodules that a user would compile, each by itself; empty: the module is compiled as a
    whole.
    ``call``: what a call is where it isn't the module's own. ``calls`` to a round, at least ``rounds``: fewer of what
    takes seconds.
    ``graph_pixels`` is ours to set, as hosts do for pictures.
    """

    name: str
    dtype: torch.dtype
    build: Callable[[torch.dtype], Any]
    inputs: Callable[[Any, torch.dtype], dict[str, Any]]
    parts: tuple[str, ...] = ()
    call: Callable[..., Any] | None = None
    calls: int = _CALLS
    rounds: int = _LEAST_ROUNDS
    graph_pixels: int | None = None


@dataclass
class Row:
    """One provider's outcome on one subject."""

    model: str
    dtype: str
    provider: str
    ms: float = 0.0
    first_calls_s: float = 0.0
    peak_bytes: int = 0
    steady_peak_bytes: int = 0
    transient_bytes: int = 0
    error: float = 0.0
    rounds_ms: list[float] = field(default_factory=list)


@dataclass
class _Provider:
    row: Row
    forward: Callable[[], torch.Tensor]
    subject: Subject
    report: Callable[[], str] | None = None


def _make(name: str, subject: Subject, module: Any) -> _Provider:
    inputs = subject.inputs(module, subject.dtype)
    compiled = []
    if subject.parts:
        for part in subject.parts:
            compiled.append(_compiled(name, getattr(module, part), f"{subject.name} {part}", subject.graph_pixels))
            if isinstance(compiled[-1], torch.nn.Module):  # ours is a handle of the same module
                setattr(module, part, compiled[-1])
    else:
        module = _compiled(name, module, subject.name, subject.graph_pixels)
        compiled.append(module)
    report = (lambda: "\n".join(part.report().text() for part in compiled)) if name == "ours" else None

    def forward() -> torch.Tensor:
        if name == "compile-reduce-overhead":
            # a step may be several compiled parts: the first one's results are still read
            torch.compiler.cudagraph_mark_step_begin()
        return _first_tensor(_call(subject, module, inputs))

    return _Provider(Row(subject.name, str(subject.dtype).removeprefix("torch."), name), forward, subject, report)


def _call(subject: Subject, module: Any, inputs: dict[str, Any]) -> Any:
    return module(**inputs) if subject.call is None else subject.call(module, **inputs)


def _compiled(provider: str, module: Any, name: str, graph_pixels: int | None = None) -> Any:
    if provider == "compile":
        return torch.compile(module)
    if provider == "compile-reduce-overhead":
        return torch.compile(module.to(memory_format=torch.channels_last), mode="reduce-overhead")
    if provider == "ours":
        import sfast_core

        return sfast_core.compile(module, sfast_core.CompileConfig(graph_pixels=graph_pixels), name=name)
    return module


def _first_tensor(result: Any) -> torch.Tensor:
    tensor: torch.Tensor = result if isinstance(result, torch.Tensor) else result[0]
    return tensor


def _prepare(provider: _Provider) -> torch.Tensor:
    """Warm up, note the first calls' time, return one result."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    start = time.perf_counter()
    for _ in range(min(_WARM_UP_CALLS, 2 * provider.subject.calls)):
        provider.forward()
        torch.cuda.synchronize()
    provider.row.first_calls_s = time.perf_counter() - start
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = provider.forward().float().clone()
    provider.row.transient_bytes = torch.cuda.max_memory_allocated() - before
    return result


def rounds(providers: list[Any], least: int = _LEAST_ROUNDS) -> list[list[Any]]:
    """The orders to measure in, each as often: a balanced Latin square (E.

    J. Williams, 1949), for an odd number with its mirror image.

    Each provider stands in each place as often as any other, and in a round behind each other as often: the GPU's power
    limit remembers what ran before for tenths of a second (SDXL, ms: 26.3 to 26.6 behind eager, up to 28 behind
    torch.compile).
    """
    count = len(providers)
    # 0, 1, n - 1, 2, n - 2, ...
    first = [(place + 1) // 2 if place % 2 else (count - place // 2) % count for place in range(count)]
    square = [[providers[(index + turn) % count] for index in first] for turn in range(count)]
    orders = square if count % 2 == 0 else [*square, *(order[::-1] for order in square)]
    return orders * -(-least // len(orders))


def _round(provider: _Provider) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    # the GPU is busy with it while the CPU prepares the next, as it is in the middle of a sampling run
    provider.forward()
    begin.record()
    for _ in range(provider.subject.calls):
        provider.forward()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / provider.subject.calls


@torch.no_grad()
def measure(
    subject: Subject, names: list[str], profile: Path | None, memory: Callable[[str, str], dict[str, int]] | None
) -> tuple[list[Row], list[KernelRow]]:
    """Every provider on one subject, and the kernels of eager and of ours in the folder ``profile``, if there is one.

    Each has a copy of the weights of its own; ``memory`` counts a provider's in a process of its own.
    """
    original = subject.build(subject.dtype)
    exact = _in_float32(original, subject)
    providers = []
    for name in names:
        print(f"{subject.name}: {name} ...", flush=True)
        counted = memory(subject.name, name) if memory and not name.startswith("compile") else {}
        provider = _make(name, subject, copy.deepcopy(original))
        provider.row.peak_bytes = counted.get("peak_bytes", 0)
        provider.row.steady_peak_bytes = counted.get("steady_peak_bytes", 0)
        result = _prepare(provider)
        provider.row.error = distance(result, exact)
        providers.append(provider)
    for order in rounds(providers, subject.rounds):
        for provider in order:
            provider.row.rounds_ms.append(_round(provider))
    kernels: list[KernelRow] = []
    for provider in providers:
        provider.row.ms = statistics.median(provider.row.rounds_ms)
        if provider.report:
            print(provider.report(), flush=True)
        if profile and provider.row.provider in ("eager", "ours"):
            kernels += _profile(provider, profile / f"profile-{subject.name.replace(' ', '-')}.txt")
    return [provider.row for provider in providers], kernels


def _in_float32(original: Any, subject: Subject) -> torch.Tensor:
    exact = copy.deepcopy(original).float()
    inputs = {key: _float(value) for key, value in subject.inputs(original, subject.dtype).items()}
    result = _first_tensor(_call(subject, exact, inputs)).clone()
    del exact
    torch.cuda.empty_cache()
    return result


def _float(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _float(item) for key, item in value.items()}
    return value.float() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def _profile(provider: _Provider, path: Path) -> list[KernelRow]:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(_PROFILED_CALLS):
            provider.forward()
        torch.cuda.synchronize()
    averages = profiler.key_averages()
    if provider.row.provider == "ours":
        path.write_text(
            averages.table(sort_by="self_cuda_time_total", row_limit=70, max_name_column_width=110), "utf-8"
        )
    return kernel_rows(provider.row.model, provider.row.provider, averages, _PROFILED_CALLS)


def table(rows: list[Row], what: str) -> str:
    """The rows as a Markdown table; the columns of memory only where it was counted."""
    memory = any(row.peak_bytes for row in rows)
    sizes = ["peak memory", "later calls"] if memory else ["beside weights"]
    found = []
    for row in rows:
        alike = [other for other in rows if (other.model, other.dtype) == (row.model, row.dtype)]
        eager = next((other.ms for other in alike if other.provider == "eager"), row.ms)
        counts = (row.peak_bytes, row.steady_peak_bytes) if memory else (row.transient_bytes,)
        gib = [f"{count / 2**30:.2f} GiB" if count else "" for count in counts]
        times = [f"{row.ms:.2f}", f"{eager / row.ms:.2f}", f"{row.first_calls_s:.1f} s"]
        found.append([f"{row.model}, {row.dtype}", row.provider, *times, *gib, f"{row.error:.1e}"])
    return markdown([what, "provider", "ms", "x eager", "first calls", *sizes, "error to float32"], found)


def main(
    name: str,
    description: str | None,
    what: str,
    subjects: list[Subject],
    memory: Callable[[str, str], dict[str, int]] | None = None,
) -> None:
    """Parse arguments, measure, print, write.

    Args:
        name: of the benchmark, ``benchmarks.NAME``, and of its files.
        description: its help text.
        what: head of the table's first column.
        subjects: to choose from.
        memory: counts the memory of a subject and a provider by their names.
    """
    parser = parser_of(name, description)
    parser.add_argument("--models", help="which models, by the beginning of their names (default: all)")
    parser.add_argument("--providers", default=",".join(PROVIDERS), help="which providers, in order")
    parser.add_argument(
        "--profile",
        action="store_true",
        help=f"also write {name}_kernels, the time by kind of kernel, and our replay's kernels",
    )
    parser.add_argument(
        "--no-memory", action="store_true", help="leave out the memory, which takes a process per model and provider"
    )
    parser.add_argument("--verbose", action="store_true", help="log what is compiled and measured")
    args = parser.parse_args()
    need_cuda(name)
    if args.verbose:
        logging.basicConfig(level=logging.WARNING)
        logging.getLogger("fast_compile").setLevel(logging.DEBUG)
    args.out.mkdir(parents=True, exist_ok=True)
    faulthandler.enable()  # a compiler that ends the process shall say where
    rows: list[Row] = []
    kernels: list[KernelRow] = []
    for subject in subjects:
        torch.compiler.reset()  # or the next model's other sizes would make it compile for any size
        if args.models is None or any(subject.name.startswith(beginning) for beginning in args.models.split(",")):
            found = measure(
                subject,
                args.providers.split(","),
                args.out if args.profile else None,
                None if args.no_memory else memory,
            )
            rows, kernels = rows + found[0], kernels + found[1]
            torch.cuda.empty_cache()
            # after each subject: a run that is cut keeps what it has
            text = write(args.out, name, rows, table(rows, what), facts())
            if kernels:
                text += "\n" + write(args.out, f"{name}_kernels", kernels, kernel_table(kernels), facts())
    if rows:
        print("\n" + text)
