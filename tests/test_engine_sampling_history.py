"""Other people's code that goes one of several ways by the step: the next sampling's calls begin with the program that served the
call at their place in the one before.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sfast_core.programs.entries import CacheEntry
from sfast_core.programs.sampling_history import SamplingHistory
from sfast_core.reporting.signature_report import SignatureReport
from tests.taken_in import Host


def _longer(until: float, twice: float) -> dict[str, Any]:
    """As Deep Shrink: reads the step, and gives more or fewer tokens by it."""

    calls = 0  # which makes it run live

    def patch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> Any:
        nonlocal calls
        calls += 1
        sigma = options["sigmas"][0].item()
        count = 2 if sigma > twice else 1 if sigma > until else 0
        state = [x.repeat(1, count + 1, 1) for x in (k, v)]
        return q, *(state if count else (k, v))

    return {"patches": {"attn": [patch]}}


@pytest.mark.parametrize(("until", "twice", "ways"), [(3.0, 9.0, 2), (1.0, 9.0, 2), (3.0, 4.0, 3), (1.0, 4.0, 3)])
def test_ways_come_again_in_the_next_sampling(until: float, twice: float, ways: int) -> None:
    """Two ways or three, one of which may be that of a single call."""
    host, patches = Host(), _longer(until, twice)

    def sampling() -> dict[str, int]:
        host.engine.taken_in.begin_sampling()
        before = host.engine.report.calls.copy()
        for step in range(5):
            x = torch.randn(2, 4, 8)
            options = {"cond_or_uncond": [0, 1], "sigmas": torch.full((2,), 5.0 - step), **patches}
            with torch.inference_mode():
                expected = host._forward(x, options)
            torch.testing.assert_close(host(x, options), expected, rtol=1e-4, atol=1e-5)
        return dict(host.engine.report.calls - before)

    first = [sampling() for _ in range(3 if ways == 2 else 5)]
    assert sum(calls.get("eager", 0) for calls in first) <= (3 if ways == 2 else 7), first
    assert sampling() == {"fused": 5}, host.engine.report.text()


def _entry() -> CacheEntry:
    return CacheEntry(SignatureReport("call"), None)


def test_what_nothing_served_is_taken_to_be_what_served_the_next() -> None:
    history, one, other = SamplingHistory[CacheEntry](), _entry(), _entry()
    for served in (one, None, other):
        history.expected("key", 1)
        if served is not None:
            history.served("key", served)
        else:
            history.failed("key", one)
    assert [history.expected("key", 2) for _ in range(4)] == [(one, []), (other, [one]), (other, []), (None, [])]
    history.forget(one)
    assert history.expected("key", 3) == (None, [])


def test_without_samplings_nothing_is_expected() -> None:
    history, entry = SamplingHistory[CacheEntry](), _entry()
    history.expected("key", 0)
    history.served("key", entry)
    assert history.expected("key", 0) == (None, [])
