"""Which rows each device has."""

from __future__ import annotations

import pytest
import torch

from sfast_core.sharding import Rows


def owned(rows: Rows, whole: torch.Tensor) -> list[torch.Tensor]:
    """What each device has of a tensor [N]."""
    return [torch.cat([whole[begin:end] for begin, end in ranges] or [whole[:0]]) for ranges in rows.ranges]


@pytest.mark.parametrize(("size", "devices"), [(8, 2), (7, 2), (3, 4), (4608, 3)])
def test_even(size: int, devices: int) -> None:
    rows = Rows.even(size, devices)
    counts = [rows.count(device) for device in range(devices)]
    assert (
        rows.size == sum(counts) == size and max(counts) - min(counts) <= 1 and counts == sorted(counts, reverse=True)
    )
    assert torch.equal(torch.cat(owned(rows, torch.arange(size))), torch.arange(size))


def test_streams_that_are_joined_come_back_in_order() -> None:
    text, image = Rows.even(5, 2), Rows.even(12, 2)
    both = Rows.joined([text, image])
    assert both.ranges == (((0, 3), (5, 11)), ((3, 5), (11, 17)))
    sent = torch.cat(owned(both, torch.arange(17)))
    assert not torch.equal(sent, torch.arange(17))
    assert torch.equal(torch.cat([sent[begin:end] for begin, end in both.in_order()]), torch.arange(17))
    assert Rows.joined([Rows.even(4, 1), Rows.even(3, 1)]).in_order() == [(0, 7)]


@pytest.mark.parametrize(("begin", "end"), [(0, 5), (5, 17), (2, 9), (0, 17), (16, 17)])
def test_a_slice_is_a_slice_of_each(begin: int, end: int) -> None:
    both = Rows.joined([Rows.even(5, 2), Rows.even(12, 2)])
    part, places = both.within(begin, end)
    whole = torch.arange(17)
    for own, (first, last), left in zip(owned(both, whole), places, owned(part, whole[begin:end]), strict=True):
        assert torch.equal(own[first:last], left)
