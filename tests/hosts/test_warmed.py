"""What a warm-up says of a size."""

from __future__ import annotations

from sfast_core.hosts.warmed import Watch
from sfast_core.reporting.report import ModuleReport
from sfast_core.reporting.signature_report import SignatureReport


def test_a_watch() -> None:
    """Only what happened since it was made counts, in all modules, those that came meanwhile too."""
    first, second = ModuleReport("UNet"), ModuleReport("other")
    first.calls.update(traced=1, replayed=3)
    reports = [first]
    watch = Watch(lambda: reports)
    assert watch.warmed().text() == "its model wasn't called"
    first.calls.update(replayed=1)
    assert watch.warmed().text() == "was captured already"
    reports.append(second)
    second.calls.update(traced=1)
    second.signatures.append(SignatureReport("x", graph_bytes=2**21))
    assert watch.calls() == {"replayed": 1, "traced": 1}
    assert watch.warmed().text().startswith("captured in 0.") and watch.warmed().text().endswith(" s, 2 MB")


def test_without_graphs() -> None:
    """Why there is none, and whether anything was new."""
    module = ModuleReport("UNet")
    watch = Watch(lambda: [module])
    module.signatures.append(SignatureReport("x", not_captured_because="there is no CUDA device"))
    module.calls.update(fused=2)
    assert watch.warmed().text() == "was traced already, runs fused without a graph: there is no CUDA device"
    module.calls.update(traced=1)
    assert "traced in 0." in watch.warmed().text()
    module.calls.update(eager=1)
    module.reasons.update({"token merging is on": 1})
    assert watch.warmed().text() == "runs as it was, because token merging is on"


def test_a_report_that_takes_the_place_of_another() -> None:
    """Its calls count, however many the one before had."""
    before, after = ModuleReport("UNet"), ModuleReport("UNet")
    before.calls.update(traced=1, fused=2)
    reports = [before]
    watch = Watch(lambda: reports)
    reports[:] = [after]
    after.calls.update(traced=1, fused=1)
    assert watch.calls() == {"traced": 1, "fused": 1}
