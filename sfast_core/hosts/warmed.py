"""Tells what became of sizes that were warmed up."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..reporting.report import ModuleReport


@dataclass(frozen=True)
class Warmed:
    """One size: how its calls ran by path, why eager, why fused without a graph, what its graphs hold, the seconds that
    it took.
    """

    calls: Counter[str]
    reasons: tuple[str, ...]
    no_graph: str | None
    graph_bytes: int
    seconds: float

    def text(self) -> str:
        """What became of the size, in words."""
        if self.reasons:
            return f"runs as it was, because {'; '.join(self.reasons)}"
        if not self.calls:
            return "its model wasn't called"
        if set(self.calls) == {"replayed"}:
            return "was captured already"
        if self.calls["replayed"]:
            return f"captured in {self.seconds:.1f} s, {self.graph_bytes / 2**20:.0f} MB"
        traced = f"traced in {self.seconds:.1f} s" if self.calls["traced"] else "was traced already"
        return f"{traced}, runs fused without a graph" + (f": {self.no_graph}" if self.no_graph else "")


class Watch:
    """Observes how the calls of some modules run, from when it is made on.

    Args:
        read: gives the modules' reports. There may be others when it is called again.
    """

    def __init__(self, read: Callable[[], Sequence[ModuleReport]]) -> None:
        self._read = read
        self._start = time.perf_counter()
        self._reports = list(read())  # held, so that no other gets the id of one
        self._before = {
            id(report): (Counter(report.calls), Counter(report.reasons), report.graph_bytes) for report in self._reports
        }

    def calls(self) -> Counter[str]:
        """The calls so far by path."""
        return self._since()[0]

    def warmed(self) -> Warmed:
        """All of it."""
        calls, reasons, graph_bytes = self._since()
        signatures = [signature for report in self._read() for signature in report.signatures]
        no_graph = next(
            (signature.not_captured_because for signature in signatures[::-1] if signature.not_captured_because), None
        )
        return Warmed(calls, tuple(reasons), no_graph, max(0, graph_bytes), time.perf_counter() - self._start)

    def _since(self) -> tuple[Counter[str], Counter[str], int]:
        calls, reasons, graph_bytes = Counter[str](), Counter[str](), 0
        for report in self._read():
            before = self._before.get(id(report), (Counter[str](), Counter[str](), 0))
            calls += report.calls - before[0]
            reasons += report.reasons - before[1]
            graph_bytes += report.graph_bytes - before[2]
        return calls, reasons, graph_bytes
