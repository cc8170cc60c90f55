"""Other people's code that goes one of several ways, each with a program of its own: smaller pictures in the first steps,
say.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.live import Host


def ways(steps: list[int]) -> Any:
    """A function that leaves some tokens out in some steps, and one that puts others there."""

    def make() -> dict[str, Any]:
        def shrink(x: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
            return x[:, : x.shape[1] - steps[options["step"]]]

        def grow(x: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
            return torch.nn.functional.pad(x, (0, 0, 0, steps[options["step"]]))

        return {"before": [shrink], "after": [grow]}

    return make


@pytest.mark.parametrize(
    ("steps", "eager", "traced"),
    [
        ([0, 0, 0, 1, 1, 1] * 3, 5, 2),
        ([0] * 4 + [1] * 4 + [3] * 4 + [0] * 4 + [1] * 4 + [3] * 4, 10, 3),
        ([0, 1, 1, 1, 1, 1], 1, 2),
    ],
    ids=["two", "three", "one that is gone"],
)
def test_each_way_is_traced_once(steps: list[int], eager: int, traced: int) -> None:
    host = Host()
    host.check(ways(steps), len(steps))
    assert host.calls["traced"] == traced and host.calls["eager"] <= eager, host.engine.report.calls
    assert host.calls["fused"] == len(steps) - traced - host.calls["eager"]


def test_weights_that_change_between_ways() -> None:
    host, steps = Host(), [0, 0, 1, 1, 0, 0, 1, 1]
    for _ in range(2):
        host.check(ways(steps), len(steps))
        with torch.no_grad():
            host.net.blocks[1].up.weight.mul_(1.5)
    assert host.calls["traced"] == 2
