"""The first one that is inside changes what is of the whole process, the last one changes it back."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from sfast_core.capture.switch import Switch


def switch(told: list[str]) -> Switch[str]:
    def change() -> Callable[[], None]:
        told.append("changed")
        return lambda: told.append("changed back")

    return Switch(change)


def test_one_inside_another() -> None:
    told: list[str] = []
    found = switch(told)
    with found.on("outer"):
        with found.on("inner"):
            assert found.own() == "inner"
        assert found.own() == "outer" and told == ["changed"]
    assert found.own() is None and told == ["changed", "changed back"]
    with found.on("again"):
        assert told == ["changed", "changed back", "changed"]


def inside_another_thread(found: Switch[str]) -> tuple[threading.Thread, threading.Event, threading.Event]:
    """A thread to be started, an event that it is inside, and one on which it leaves."""
    entered, may_leave = threading.Event(), threading.Event()

    def other() -> None:
        with found.on("of the other"):
            entered.set()
            may_leave.wait(10)

    return threading.Thread(target=other), entered, may_leave


def test_threads_that_overlap_in_any_order() -> None:
    """The one that came first leaves first, and has nothing of the other's."""
    told: list[str] = []
    found = switch(told)
    thread, entered, may_leave = inside_another_thread(found)
    with found.on("of the first"):
        thread.start()
        assert entered.wait(10) and found.own() == "of the first"
    assert found.own() is None and told == ["changed"]
    may_leave.set()
    thread.join()
    assert told == ["changed", "changed back"]


def test_what_fails_to_change_is_tried_again() -> None:
    def change() -> Callable[[], None]:
        raise RuntimeError("not now")

    found: Switch[int] = Switch(change)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="not now"), found.on(1):
            raise AssertionError("unreachable")
    assert found.own() is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.parametrize("inside", [False, True])
def test_in_a_forked_child_the_other_threads_are_not_inside(inside: bool) -> None:
    told: list[str] = []
    found = switch(told)
    thread, entered, may_leave = inside_another_thread(found)
    thread.start()
    entered.wait(10)
    with ExitStack() as stack:
        if inside:
            stack.enter_context(found.on("own"))
        child = os.fork()
        if child == 0:
            right = (found.own(), told) == (("own", ["changed"]) if inside else (None, ["changed", "changed back"]))
            stack.close()
            os._exit(0 if right and found.own() is None and told == ["changed", "changed back"] else 1)
    may_leave.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0 and told == ["changed", "changed back"]
