"""How long a GPU takes for a function: launches in a CUDA graph, arguments out of L2, rounds that alternate.

A graph leaves Python and the launches out. Each replay goes through enough copies of the arguments to fill three times
the L2 of an H100 (small ones at most ``MAX_COPIES`` times, so that arguments of a few kilobytes stay in L2, as they do
in a model).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

COLD_BYTES = 160 << 20
MAX_COPIES = 64
ROUNDS = 9
_PEAK_SIDE = 8192  #: of the square matrices whose product tells what the GPU can multiply
_PEAK_BYTES = 1 << 30  #: of the tensor whose copy tells what its memory can move

Launch = Callable[..., Any]


@dataclass(frozen=True)
class Peak:
    """What this GPU reached in this run."""

    flop_per_s: float
    bytes_per_s: float

    def least_us(self, flop: float, count_bytes: float) -> float:
        """The time below which neither the products nor the memory traffic can be done."""
        return max(flop / self.flop_per_s, count_bytes / self.bytes_per_s) * 1e6


def tensors(value: Any) -> list[torch.Tensor]:
    """Every tensor in nested tuples and lists."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for item in value for tensor in tensors(item)] if isinstance(value, (tuple, list)) else []


def count_bytes(values: Iterable[Any]) -> int:
    """What reading or writing these tensors once takes."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors(list(values)))


def copies_for(argument_bytes: int) -> int:
    """How many copies of the arguments a replay goes through."""
    return max(2, min(MAX_COPIES, COLD_BYTES // max(1, argument_bytes)))


def capture(launch: Launch, copies: list[tuple[Any, ...]]) -> torch.cuda.CUDAGraph:
    """A graph that launches it once on each copy of the arguments.

    ``launch`` must have run before: kernels are compiled then.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        launch(*copies[0])
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for arguments in copies:
            launch(*arguments)
    return graph


def interleaved_us(graphs: dict[str, torch.cuda.CUDAGraph], launches: int, rounds: int = ROUNDS) -> dict[str, float]:
    """Microseconds of one launch by name: the median of rounds in which each graph is replayed once.

    The first round warms up.
    """
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(rounds + 1):
        for name, graph in graphs.items():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times[name].append(start.elapsed_time(end) * 1e3 / launches)
    return {name: statistics.median(found[1:]) for name, found in times.items()}


def measure_peak(dtype: torch.dtype = torch.float16) -> Peak:
    """A large matrix product and a large copy, by the same clock as all else."""
    side = _PEAK_SIDE
    a, b = (torch.randn(side, side, device="cuda", dtype=dtype) for _ in range(2))
    source = torch.zeros(_PEAK_BYTES, dtype=torch.uint8, device="cuda")
    copy = torch.empty_like(source)
    graphs = {"product": capture(torch.mm, [(a, b)] * 4), "copy": capture(copy.copy_, [(source,)] * 4)}
    times = interleaved_us(graphs, 4)
    return Peak(2 * side**3 / times["product"] * 1e6, 2 * _PEAK_BYTES / times["copy"] * 1e6)
