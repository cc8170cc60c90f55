"""Whatever steers a forward may change between two calls, wherever it lies: the next result is what an uncompiled twin
makes then.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sfast_core import CompileConfig, compile
from tests.capture.steering.worlds import Case, cases, two_worlds

X = torch.linspace(-1.0, 2.0, 16).reshape(2, 8)
CASES = [pytest.param(case, id=str(case), marks=[] if often else [pytest.mark.slow]) for case, often in cases()]


@pytest.mark.parametrize("case", CASES)
def test_a_change_is_noticed(case: Case, tmp_path: Path) -> None:
    source = case.source()
    with two_worlds(source, tmp_path) as (ours, twin), torch.no_grad():
        handle = compile(ours.module, CompileConfig(allow_cpu=True))
        before = twin.module(X)
        for _ in range(3):
            torch.testing.assert_close(
                handle(X), before, msg=lambda text: f"wrong before anything changed: {text}\n{source}"
            )
        calls = dict(handle.engine.report.calls)
        for what in ("change", "change_back"):
            for world in (ours, twin):
                getattr(world, what)()
            expected = twin.module(X)
            if what == "change":
                assert torch.equal(expected, before) == case.change.same, (
                    f"the case is no case: the change does nothing\n{source}"
                )
            for _ in range(2):
                got = handle(X)
                stale = " (as before it)" if torch.equal(got, before) else ""
                torch.testing.assert_close(
                    got, expected, msg=lambda text, s=stale, w=what: f"STALE{s} behind {w}: {text}\n{source}"
                )
        assert case.refusable or calls.get("fused"), f"EAGER: {calls} {dict(handle.engine.report.reasons)}\n{source}"
