"""Other people's functions that no record can hold, and what they keep."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.taken_in import Host
from tests.test_engine_taken_in import ImagePrompt, free_u


def _counting() -> dict[str, Any]:
    state = {"calls": 0}

    def patch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> Any:
        state["calls"] += 1
        return q * state["calls"], k, v

    return {"patches": {"attn": [patch]}}


def _with_attribute() -> dict[str, Any]:
    class Patch:
        calls = 0

        def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> Any:
            self.calls += 1
            return q * self.calls, k, v

    return {"patches": {"attn": [Patch()]}}


def _iterating() -> dict[str, Any]:
    steps = itertools.count(1)
    return {"patches": {"attn": [lambda q, k, v, options: (q * next(steps), k, v)]}}


def _keeping() -> dict[str, Any]:
    kept: list[torch.Tensor] = []

    def patch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> Any:
        kept.append(q)
        return q + sum(each.mean() for each in kept[-4:]), k, v

    return {"patches": {"attn": [patch]}}


def _drawing() -> dict[str, Any]:
    return {"patches": {"attn": [lambda q, k, v, options: (q + torch.randn_like(q), k, v)]}}


def _reading() -> dict[str, Any]:
    return {"patches": {"attn": [lambda q, k, v, options: (q * options["sigmas"][0].item(), k, v)]}}


def _deciding() -> dict[str, Any]:
    return {"patches": {"attn": [lambda q, k, v, options: (q * 2 if float(q.mean()) > 0 else q, k, v)]}}


def _saying() -> dict[str, Any]:
    return {"patches": {"attn": [lambda q, k, v, options: (print("attention"), (q * 2, k, v))[1]]}}


@pytest.mark.parametrize(
    "make", [_counting, _with_attribute, _iterating, _keeping, _drawing, _reading, _deciding, _saying]
)
def test_what_no_record_can_hold_runs_live(make: Callable[[], dict[str, Any]]) -> None:
    """Each of its calls once, from the first on; beside one that is recorded with the model."""
    host = Host()

    def both() -> Callable[[int], dict[str, Any]]:
        state = make()
        patches = {"patches": {**state["patches"], **free_u()["patches"]}}
        return lambda step: patches

    found = host.check(both, 7)
    text = host.engine.report.text()
    assert found["traced"] == 1 and found.get("eager", 0) <= 2 and host.last == (1, 2), (found, text)
    assert "that runs live because " in text, text


def test_maps_that_it_keeps_are_kept_at_each_call() -> None:
    kept: list[list[torch.Tensor]] = []

    def make() -> Callable[[int], dict[str, Any]]:
        own: list[torch.Tensor] = []
        kept.append(own)

        def patch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> Any:
            own.append(q * 2)
            return q, k, v

        return lambda step: {"patches": {"attn": [patch]}}

    host = Host()
    host.check(make, 5)
    torch.testing.assert_close(kept[0], kept[1], rtol=1e-4, atol=1e-5)
    assert len(kept[0]) == 10 and host.last == (1, 0)


def test_tensors_that_it_reads_in_place_and_anew() -> None:
    host, tensors = Host(), [torch.ones(8), torch.ones(8)]

    def make() -> Callable[[int], dict[str, Any]]:
        number = len(made)
        made.append(number)

        def patch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> Any:
            return q * tensors[number], k, v

        def step_(step: int) -> dict[str, Any]:
            if step == 3:
                tensors[number].mul_(3)
            if step == 6:
                tensors[number] = torch.full((8,), 5.0)
            return {"patches": {"attn": [patch]}}

        return step_

    made: list[int] = []
    assert host.check(make, 9) == {"traced": 2, "fused": 7}


def test_what_it_holds_goes_when_it_was_not_used_for_a_while() -> None:
    host, image = Host(), torch.randn(1, 3, 8)
    options = {"patches_replace": {"attn": {0: ImagePrompt(image)}}}
    alive = weakref.ref(image)
    del image
    for _ in range(2):
        host(torch.randn(2, 4, 8), {"cond_or_uncond": [0, 1], "sigmas": torch.ones(2), **options})
    del options
    (on,) = host.engine.devices
    for there in (True, False):
        host.engine.taken_in.begin_sampling()
        host(torch.randn(2, 4, 8), {})
        on.let_go(host.net, host.engine.taken_in.sampling)
        gc.collect()
        assert (alive() is not None) is there


def test_one_that_reads_what_another_sets_runs_live_with_it() -> None:
    """As token merging's two: known beforehand, so that no call is spent on it."""
    host = Host()

    def merging() -> dict[str, Any]:
        size = 0

        def merge(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> Any:
            nonlocal size
            size = q.shape[1]
            return q, k, v * 1.5

        def unmerge(h: torch.Tensor, skip: torch.Tensor, options: dict[str, Any]) -> Any:
            return h * size, skip

        return {"patches": {"attn": [merge], "output": [unmerge]}}

    made = merging()
    assert host.check(lambda: lambda step: made, 4) == {"traced": 1, "fused": 3}, host.engine.report.text()
    assert host.last == (0, 3)
