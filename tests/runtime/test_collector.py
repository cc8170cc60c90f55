"""What a first call makes neither brings the collector's walk over everything nearer nor keeps what is gone alive."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from sfast_core.runtime.collector import collector_paused


class _Thing:
    other: Any = None


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    gc.collect()
    yield
    gc.enable()


def _young() -> set[int]:
    return {id(each) for generation in (0, 1) for each in gc.get_objects(generation)}


def test_nothing_is_collected_inside() -> None:
    with collector_paused():
        assert not gc.isenabled()
        with collector_paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


@pytest.mark.parametrize("lasting", [True, False])
def test_what_lasts_is_old_at_once(lasting: bool) -> None:
    with collector_paused(lasting):
        things = [_Thing() for _ in range(50)]
    assert _young().isdisjoint(map(id, things)) == lasting


def test_what_is_gone_by_then_does_not_wait() -> None:
    with collector_paused(lasting=True):
        thing = _Thing()
        thing.other = thing
        gone = weakref.ref(thing)
        del thing
    assert gone() is None


def test_what_ends_with_an_exception_stays_young() -> None:
    things: list[_Thing] = []
    with pytest.raises(ValueError), collector_paused(lasting=True):
        things += [_Thing() for _ in range(50)]
        raise ValueError
    assert not _young().isdisjoint(map(id, things))


@pytest.mark.parametrize("how", ["it was off", "the host has frozen some"])
def test_what_the_host_decided_stays(how: str) -> None:
    if how == "it was off":
        gc.disable()
    else:
        gc.freeze()
    frozen = gc.get_freeze_count()
    try:
        with collector_paused(lasting=True):
            pass
        assert gc.get_freeze_count() == frozen and gc.isenabled() == (how != "it was off")
    finally:
        gc.unfreeze()
