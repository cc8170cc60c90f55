"""Microseconds of a launch, in replays of a graph back to back, and the rows of the table."""

from __future__ import annotations

import csv
import os
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch

LEAST_GRAPH_US = 1500.0
REPLAYS = 24
_WARM = 4


@dataclass
class Row:
    """A kernel at a shape. ``error``: against float32 operands; ``kernel_error``: against what it was given."""

    part: str
    shape: str
    rows: int
    depth: int
    columns: int
    kind: str
    impl: str
    us: float = 0.0
    tflops: float = 0.0
    gbps: float = 0.0
    error: float = 0.0
    kernel_error: float = 0.0
    note: str = ""


def microseconds(launch: Callable[[], object]) -> float:
    """The median of replays that follow each other, so that the card is as warm as in a model."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        launch()
    stream.synchronize()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with torch.cuda.stream(stream):
        start.record()
        launch()
        end.record()
    end.synchronize()
    count = max(2, min(50, int(LEAST_GRAPH_US / max(start.elapsed_time(end) * 1e3, 1.0))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(count):
            launch()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(REPLAYS + _WARM + 1)]
    events[0].record()
    for event in events[1:]:
        graph.replay()
        event.record()
    torch.cuda.synchronize()
    times = [before.elapsed_time(after) for before, after in zip(events, events[1:], strict=False)][_WARM:]
    return statistics.median(times) * 1e3 / count


def folder() -> Path:
    """Where results go."""
    return Path(os.environ.get("OUT", "."))


class Table:
    """A part's rows, in a CSV as they come."""

    def __init__(self, part: str) -> None:
        self.part = part
        self.rows: list[Row] = []
        self._path = folder() / f"products-{part}.csv"
        with self._path.open("w", newline="") as stream:
            csv.writer(stream).writerow([field.name for field in fields(Row)])

    def add(self, row: Row) -> None:
        """Keep it."""
        self.rows.append(row)
        with self._path.open("a", newline="") as stream:
            csv.writer(stream).writerow([f"{value:.4g}" if isinstance(value, float) else value for value in asdict(row).values()])
