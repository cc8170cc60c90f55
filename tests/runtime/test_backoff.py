"""When a passing failure is tried again."""

from __future__ import annotations

from sfast_core.runtime.backoff import Backoff


def tries(backoff: Backoff, key: str, calls: int) -> list[int]:
    """The calls at which ``key`` is tried, where each try fails."""
    tried = []
    for call in range(calls):
        if backoff.reason(key) is None:
            tried.append(call)
            backoff.failed(key, f"failure {len(tried)}")
    return tried


def test_each_failure_makes_the_wait_longer_up_to_a_limit() -> None:
    found = tries(Backoff(), "a", 1000)
    assert (
        found[:5] == [0, 1, 4, 11, 26]
        and found[-1] - found[-2] == 129
        and max(b - a for a, b in zip(found, found[1:], strict=False)) == 129
    )


def test_keys_wait_by_themselves_and_a_success_ends_it() -> None:
    backoff = Backoff()
    assert tries(backoff, "a", 3) == [0, 1] and backoff.reason("a") == "failure 2" and backoff.reason("b") is None
    backoff.succeeded("a")
    backoff.succeeded("never failed")
    assert backoff.reason("a") is None and tries(backoff, "a", 3) == [0, 1]
    backoff.clear()
    assert backoff.reason("a") is None
