"""Rows of a cache are written where it lies, where nothing in the graph reads what was there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from sfast_core.rewrite import write_in_place
from tests.models import Forward
from tests.tracing import evaluate, rewritten

Function = Callable[..., Any]
AT = torch.tensor([2, 3])

# name: (what is left in the cache, and what else there is, of cache, rows and places; whether it is written in place)
UNITS: dict[str, tuple[Function, bool]] = {
    "rows": (lambda net, keys, x, at: (keys.index_copy(1, at, x), x * 2), True),
    "rows that are read then": (lambda net, keys, x, at: ((k := keys.index_copy(1, at, x)), k.sum(1)), True),
    "places that are computed": (lambda net, keys, x, at: (keys.index_copy(1, at + 1, x * 2), x), True),
    "of a cache that is read before": (lambda net, keys, x, at: (keys.index_copy(1, at, x), keys.sum(1)), False),
    "of what there was": (lambda net, keys, x, at: (keys.index_copy(1, at, x + keys.sum(1, keepdim=True)), x), False),
    "of something else": (lambda net, keys, x, at: ((keys * 1.5).index_copy(1, at, x), x), False),
    "twice": (lambda net, keys, x, at: (keys.index_copy(1, at, x).index_copy(1, at, x), x), False),
    "that are left twice": (lambda net, keys, x, at: ((k := keys.index_copy(1, at, x)), k), False),
    "that are added": (lambda net, keys, x, at: (keys.index_add(1, at, x), x), False),
}


@pytest.mark.parametrize("name", UNITS)
def test_it_is_written_where_it_lies(name: str) -> None:
    function, there = UNITS[name]
    torch.manual_seed(0)
    keys, x = torch.randn(2, 6, 4), torch.randn(2, 2, 4)
    _, graph = rewritten("canonicalise", Forward(function), keys, x, AT)
    expected = function(None, keys.clone(), x, AT)
    assert write_in_place(graph, {0: 0}) == ({0: 0} if there else {})
    mine = keys.clone()
    for _ in range(2):  # once more on the same tensors gives the same
        results = evaluate(graph, [mine, x, AT])
        for got, theirs in zip(results, expected, strict=True):
            torch.testing.assert_close(got, theirs)
    assert (results[0] is mine) is there and torch.equal(mine, keys) is not there


def test_what_is_no_state_is_left_alone() -> None:
    _, graph = rewritten("canonicalise", Forward(UNITS["rows"][0]), torch.randn(2, 6, 4), torch.randn(2, 2, 4), AT)
    assert write_in_place(graph, {}) == {}
    keys = torch.zeros(2, 6, 4)
    evaluate(graph, [keys, torch.ones(2, 2, 4), AT])
    assert not keys.any()
