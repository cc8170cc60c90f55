"""The order in which providers are measured."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.interleaved import rounds


@pytest.mark.parametrize("names", ["a", "ab", "abc", "abcd"])
def test_each_stands_in_each_place_and_beside_each_other_as_often(names: str) -> None:
    orders = rounds(list(names))
    assert len(orders) >= 15
    places = Counter((place, name) for order in orders for place, name in enumerate(order))
    assert len(places) == len(names) ** 2 and len(set(places.values())) == 1
    in_turn = [name for order in orders for name in order]
    for name in names:
        before = Counter(earlier for earlier, later in zip(in_turn, in_turn[1:], strict=False) if later == name and earlier != name)
        if len(names) == 3:  # with more, only the neighbours on the circle ever follow one another within a round
            assert max(before.values()) - min(before.values()) <= 2, before
