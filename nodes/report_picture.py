"""A report as a picture: how the calls ran, what each signature holds, where the time before went.

Only what the report knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .picture import AMBER, BLUE, FAINT, GREEN, RED, Picture

if TYPE_CHECKING:
    from ..sfast_core.reporting.report import ModuleReport, Report
    from ..sfast_core.reporting.signature_report import SignatureReport

_PATHS = (
    ("replayed", "replayed as a graph", GREEN),
    ("fused", "fused, no graph", BLUE),
    ("traced", "traced", AMBER),
    ("eager", "as before", RED),
)
_ONCE = (("trace_s", "trace", BLUE), ("rewrite_s", "rewrite and measure", AMBER), ("capture_s", "capture", GREEN))
_SHOWN = 12  # signatures and reasons of a module


def draw(report: Report) -> Picture:
    """The picture of ``report``."""
    picture = (
        Picture()
        .title("Fast Compile")
        .line(", ".join(f"{name} {version}" for name, version in report.versions.items()), FAINT)
    )
    if not report.modules:
        picture.gap().line("Nothing has run through it yet.")
    for module in report.modules:
        _module(picture.gap(), module)
    return picture


def _module(picture: Picture, module: ModuleReport) -> None:
    picture.title(f"{module.name} on {module.device}" if module.device else module.name)
    total = sum(module.calls.values())
    used = [(f"{module.calls[path]} {words}", colour) for path, words, colour in _PATHS if module.calls[path]]
    picture.bar("calls", str(total), [(module.calls[path] / max(1, total), colour) for path, _, colour in _PATHS])
    if used:
        picture.legend(used)
    for reason, count in module.reasons.most_common(_SHOWN):
        picture.line(f"as before, {count}x: {reason}", RED)
    picture.line(f"graphs {_mb(module.graph_bytes)}, weights laid out anew {_mb(module.adopted_bytes)}", FAINT)
    shown = module.signatures[-_SHOWN:]
    if shown:
        _signatures(picture, shown)
    if len(module.signatures) > len(shown):
        picture.line(f"and {len(module.signatures) - len(shown)} more signatures", FAINT)


def _signatures(picture: Picture, shown: list[SignatureReport]) -> None:
    most = max([1, *(signature.graph_bytes for signature in shown)])
    longest = max([1e-9, *(_once(signature) for signature in shown)])
    picture.gap().line("Per signature: the memory of its graph")
    for signature in shown:
        value = _mb(signature.graph_bytes) if signature.graph_bytes else "no graph"
        picture.bar(signature.inputs, f"{value}, {signature.calls} calls", [(signature.graph_bytes / most, GREEN)])
    for reason in dict.fromkeys(filter(None, (signature.not_captured_because for signature in shown))):
        picture.line(f"no graph: {reason}", FAINT)
    picture.gap().line("Per signature: the time that it took once")
    for signature in shown:
        parts = [(getattr(signature, name) / longest, colour) for name, _, colour in _ONCE]
        picture.bar(signature.inputs, f"{_once(signature):.2f} s", parts)
    picture.legend([(words, colour) for _, words, colour in _ONCE])
    _rewrites(picture, shown[-1])


def _rewrites(picture: Picture, signature: SignatureReport) -> None:
    """What was fused in the latest signature, what found nothing to do,
    and which kernels could not be taken and why.
    """
    used = sorted((item for item in signature.passes.items() if item[1]), key=lambda item: -item[1])
    if used:
        picture.gap().line(f"Places that each rewrite changed in {signature.inputs}")
    for name, count in used:
        picture.bar(name, str(count), [(count / used[0][1], BLUE)])
    if idle := [name for name, count in signature.passes.items() if not count]:
        picture.line(f"found nothing to do: {', '.join(idle)}", FAINT)
    for reason, names in signature.refusals().items():
        picture.line(f"not taken, {reason}: {', '.join(names)}", FAINT)


def _once(signature: SignatureReport) -> float:
    return sum(getattr(signature, name) for name, _, _ in _ONCE)


def _mb(count: int) -> str:
    return f"{count / 2**20:.0f} MB"
