"""The status line: in one sentence, how the calls so far ran."""

from __future__ import annotations

from ...report import ModuleReport, Report

_PATHS = (
    ("replayed", "replayed as a CUDA graph"),
    ("fused", "fused without a graph"),
    ("traced", "traced"),
    ("eager", "as before"),
)


def status_line(report: Report) -> str:
    """What became of the calls of each UNet, the last reason for running as before included."""
    lines = [_line(module) for module in report.modules if sum(module.calls.values())]
    return " · ".join(lines) or "Nothing has run through it yet."


def _line(module: ModuleReport) -> str:
    counts = ", ".join(f"{module.calls[path]} {words}" for path, words in _PATHS if module.calls[path])
    reason = next(reversed(module.reasons), None)
    memory = f", {module.graph_bytes / 2**20:.0f} MB in graphs" if module.graph_bytes else ""
    return f"{module.name}: {counts}{memory}" + (f". Ran as before because {reason}" if reason else "")
