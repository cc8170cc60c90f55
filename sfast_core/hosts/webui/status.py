"""The status line: in one sentence, how the calls so far ran."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ...quality.levels import EXACT
from ...reporting.report import ModuleReport, Report

_PATHS = (
    ("replayed", "replayed as a CUDA graph"),
    ("fused", "fused without a graph"),
    ("traced", "traced"),
    ("eager", "as before"),
)


class LastPicture:
    """What became of one generation, counted since it began.

    Args:
        enabled: whether it was to be accelerated.
        modules: the reports of all models, as they are when it begins.
    """

    def __init__(self, enabled: bool, modules: Sequence[ModuleReport]) -> None:
        self._enabled = enabled
        self._reports = list(modules)  # held, so that no other gets the id of one
        self._before = {id(module): (Counter(module.calls), Counter(module.reasons)) for module in modules}

    def text(self, modules: Sequence[ModuleReport]) -> str:
        """In words."""
        if not self._enabled:
            return "Last picture: made as before, because Fast Compile is off."
        calls, reasons = Counter[str](), Counter[str]()
        for module in modules:
            before = self._before.get(id(module), (Counter[str](), Counter[str]()))
            calls += module.calls - before[0]
            reasons += module.reasons - before[1]
        if not calls:
            return "Last picture: no model has run through it."
        counts = ", ".join(f"{calls[path]} {words}" for path, words in _PATHS if calls[path])
        how = "not faster" if 2 * calls["eager"] > calls.total() else "mostly fast" if calls["eager"] else "fast"
        why = f" As before because {reasons.most_common(1)[0][0]}." if reasons else ""
        return f"Last picture: {how}. Calls of its models: {counts}.{why}"


def status_line(report: Report) -> str:
    """What became of the calls of each UNet, the last reason for running as before included."""
    lines = [_line(module) for module in report.modules if sum(module.calls.values())]
    return "So far: " + " · ".join(lines) if lines else "Nothing has run through it yet."


def lossy_of(report: Report) -> str:
    """What was done of what qualities allow that aren't exact, or why nothing; empty where all are."""
    modules = [module for module in report.modules if module.settings.get("quality", EXACT) != EXACT]
    return "; ".join(
        dict.fromkeys(clause for module in modules for signature in module.signatures for clause in signature.lossy)
    )


def _line(module: ModuleReport) -> str:
    counts = ", ".join(f"{module.calls[path]} {words}" for path, words in _PATHS if module.calls[path])
    reason = next(reversed(module.reasons), None)
    memory = f", {module.graph_bytes / 2**20:.0f} MB in graphs" if module.graph_bytes else ""
    quality = f", {quality}" if (quality := module.settings.get("quality", EXACT)) != EXACT else ""
    return f"{module.name}: {counts}{memory}{quality}" + (f". Ran as before because {reason}" if reason else "")
