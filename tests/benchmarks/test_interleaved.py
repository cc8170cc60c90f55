"""The order in which providers are measured."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.interleaved import rounds


@pytest.mark.parametrize("names", ["a", "ab", "abc", "abcd", "abcde", "abcdef"])
def test_each_stands_in_each_place_and_behind_each_other_as_often(names: str) -> None:
    orders = rounds(list(names))
    assert len(orders) >= 15 and all(sorted(order) == list(names) for order in orders)
    places = Counter((place, name) for order in orders for place, name in enumerate(order))
    assert len(places) == len(names) ** 2 and len(set(places.values())) == 1
    behind = Counter(pair for order in orders for pair in zip(order, order[1:], strict=False))
    assert len(behind) == len(names) * (len(names) - 1) and len(set(behind.values())) <= 1
