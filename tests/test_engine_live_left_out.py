"""Live code that keeps a state and leaves a block out at some steps, as caches of blocks do: whichever step is recorded
first, nothing of it runs twice.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.live import Host, fused_and_captured

host = fused_and_captured()


@pytest.mark.parametrize("first", [0, 1, 2])
def test_a_block_left_out_when_recorded_by_code_that_counts(host: Host, first: int) -> None:
    counts = []

    def make() -> dict[str, Any]:
        calls = [0]
        counts.append(calls)

        def around(args: dict[str, Any], extra: dict[str, Any]) -> Any:
            calls[0] += 1
            return args if calls[0] % 3 == first else {"x": extra["original_block"](args)["x"] * 1.1}

        return {"replace": {1: around}}

    host.check(make, 9)
    assert counts[0] == counts[1] == [9]
    assert host.calls.get("eager", 0) == (first == 1) and host.calls["traced"] == 1


def test_code_that_never_runs_what_it_is_handed_is_traced_all_the_same(host: Host) -> None:
    def make() -> dict[str, Any]:
        calls = [0]

        def around(args: dict[str, Any], extra: dict[str, Any]) -> Any:
            calls[0] += 1
            return {"x": args["x"] * (1 + 0.1 * calls[0])}

        return {"replace": {1: around}}

    host.check(make, 9)
    assert host.calls["traced"] == 1 and host.calls["eager"] == 4
