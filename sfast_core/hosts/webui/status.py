"""The status line: in one sentence, how the calls so far ran."""

from __future__ import annotations

from ...quality.levels import EXACT
from ...reporting.report import ModuleReport, Report

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


def lossy_of(report: Report) -> str:
    """What was done of what qualities allow that aren't exact, or why nothing; empty where all are."""
    modules = [module for module in report.modules if module.settings.get("quality", EXACT) != EXACT]
    return "; ".join(dict.fromkeys(clause for module in modules for signature in module.signatures for clause in signature.lossy))


def _line(module: ModuleReport) -> str:
    counts = ", ".join(f"{module.calls[path]} {words}" for path, words in _PATHS if module.calls[path])
    reason = next(reversed(module.reasons), None)
    memory = f", {module.graph_bytes / 2**20:.0f} MB in graphs" if module.graph_bytes else ""
    quality = f", {quality}" if (quality := module.settings.get("quality", EXACT)) != EXACT else ""
    return f"{module.name}: {counts}{memory}{quality}" + (f". Ran as before because {reason}" if reason else "")
