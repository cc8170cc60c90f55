"""Which functions are told while a call is watched, and that nothing of it stays."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import pytest

from sfast_core.capture.guards.frames import _IDS, NotWatched, Unwatched, _Monitored, _Profiled, _tool, watched

needs_monitoring = pytest.mark.skipif(not hasattr(sys, "monitoring"), reason="sys.monitoring is new in Python 3.12")
WAYS = [pytest.param(_Profiled, id="setprofile"), pytest.param(_Monitored, id="monitoring", marks=needs_monitoring)]
Way = Callable[[Any], Any]


class Started:
    """Notes what was told."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.variables: list[dict[str, Any]] = []

    def __call__(self, code: CodeType, frame: FrameType) -> None:
        assert frame.f_code is code
        self.names.append(code.co_name)
        self.variables.append(dict(frame.f_locals))


def nothing(function: Any, frame: FrameType) -> None:
    """Nobody is to hear what is asked for."""


def inner(x: int, *more: int, scale: int = 1, **others: int) -> int:
    return x * scale


def outer(x: int) -> int:
    return inner(x, 5, scale=2, other=3) + 1


def numbers() -> Any:
    yield inner(1)
    yield inner(2)


def failing() -> None:
    raise ValueError("it fails")


def free_tools() -> list[Any]:
    return [sys.monitoring.get_tool(tool) for tool in range(6)] if hasattr(sys, "monitoring") else []


def give_back() -> None:
    """The number that this package keeps once it has one."""
    for tool in range(6) if hasattr(sys, "monitoring") else ():
        if sys.monitoring.get_tool(tool) == "fast_compile":  # type: ignore[attr-defined]
            sys.monitoring.set_events(tool, 0)  # type: ignore[attr-defined]
            sys.monitoring.free_tool_id(tool)  # type: ignore[attr-defined]
    _tool.cache_clear()


@pytest.fixture(autouse=True)
def _nothing_else_stays() -> Any:
    give_back()
    before, profiler = free_tools(), sys.getprofile()
    yield
    give_back()
    assert free_tools() == before and sys.getprofile() is profiler


@pytest.mark.parametrize("way", WAYS)
def test_each_function_that_starts_is_told_with_its_arguments(way: Way) -> None:
    started = Started()
    with way(started, nothing):
        outer(3)
    assert started.names == ["outer", "inner"]
    assert started.variables == [{"x": 3}, {"x": 3, "more": (5,), "scale": 2, "others": {"other": 3}}]
    outer(4)
    assert len(started.names) == 2, "it is over"


@pytest.mark.parametrize("way", WAYS)
def test_each_call_is_told(way: Way) -> None:
    started = Started()
    with way(started, nothing):
        for step in range(3):
            inner(step)
    assert started.names == ["inner"] * 3


@pytest.mark.parametrize("way", WAYS)
def test_what_is_closed_over_is_there(way: Way) -> None:
    factor = 3

    def closing(x: int) -> int:
        return x * factor

    started = Started()
    with way(started, nothing):
        closing(1)
    assert started.variables == [{"x": 1, "factor": 3}]


@pytest.mark.parametrize("way", WAYS)
def test_a_generator_is_told_when_it_starts(way: Way) -> None:
    started = Started()
    with way(started, nothing):
        made = numbers()
        started.names.append("made")
        list(made)
    names = started.names[started.names.index("made") + 1 :]
    assert names[0] == "numbers" and names.count("inner") == 2


@pytest.mark.parametrize("way", WAYS)
def test_a_call_of_a_c_function_back_into_python_is_told(way: Way) -> None:
    started = Started()
    with way(started, nothing):
        sorted([2, 1], key=inner)
        list(map(inner, [1]))
    assert started.names == ["inner"] * 3


@pytest.mark.parametrize("way", WAYS)
def test_what_python_and_torch_have_is_not(way: Way) -> None:
    started = Started()
    with way(started, nothing):
        json.loads(json.dumps({"a": [1, 2]}))
        threading.Event().is_set()
        inner(1)
    assert started.names == ["inner"]


@pytest.mark.parametrize("way", WAYS)
def test_a_pause(way: Way) -> None:
    started = Started()
    with way(started, nothing) as watch:
        inner(1)
        watch.pause()
        outer(1)
        watch.resume()
        inner(2)
    assert started.names == ["inner", "inner"]


@pytest.mark.parametrize("way", WAYS)
def test_a_pause_that_the_call_ends_in(way: Way) -> None:
    started = Started()
    with pytest.raises(ValueError, match="it fails"), way(started, nothing) as watch:
        watch.pause()
        failing()
    outer(1)
    with way(started, nothing):
        outer(1)
    assert started.names == ["outer", "inner"]


@pytest.mark.parametrize("way", WAYS)
def test_an_exception_ends_it(way: Way) -> None:
    started = Started()
    with pytest.raises(ValueError, match="it fails"), way(started, nothing):
        failing()
    outer(1)
    assert started.names == ["failing"]


@pytest.mark.parametrize("way", WAYS)
def test_only_this_thread_is_watched(way: Way) -> None:
    started, go = Started(), threading.Event()

    def elsewhere() -> None:
        go.wait()
        outer(1)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    with way(started, nothing):
        go.set()
        thread.join()
        inner(1)
    assert started.names == ["inner"]


@pytest.mark.parametrize("way", WAYS)
def test_one_within_another(way: Way) -> None:
    """The inner one is told what happens within it; the outer one at least what happens around."""
    first, second = Started(), Started()
    with way(first, nothing):
        inner(1)
        with way(second, nothing):
            outer(1)
        inner(2)
    assert second.names == ["outer", "inner"]
    assert first.names in (["inner", "inner"], ["inner", "outer", "inner", "inner"])


@pytest.mark.parametrize("way", WAYS)
def test_again_and_again(way: Way) -> None:
    for _ in range(20):
        started = Started()
        with way(started, nothing):
            outer(1)
        assert started.names == ["outer", "inner"]


@pytest.mark.parametrize("way", WAYS)
def test_another_profiler_goes_on_behind_it(way: Way) -> None:
    seen: list[str] = []

    def profiler(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            seen.append(frame.f_code.co_name)

    sys.setprofile(profiler)
    try:
        started = Started()
        with way(started, nothing):
            inner(1)
        assert started.names == ["inner"] and sys.getprofile() is profiler
        seen.clear()
        outer(1)
        assert seen == ["outer", "inner"]
    finally:
        sys.setprofile(None)


def test_beside_cprofile() -> None:
    """Before Python 3.12 nothing but cProfile itself could put its profiler back: then nothing is watched, and it goes
    on.
    """
    import cProfile

    profile, started = cProfile.Profile(), Started()
    refused = False
    profile.enable()
    try:
        with watched(started, nothing):
            inner(1)
    except NotWatched:
        refused = True
    finally:
        outer(1)
        profile.disable()
    assert refused or started.names == ["inner"]
    assert any(getattr(entry.code, "co_name", "") == "outer" for entry in profile.getstats())


@needs_monitoring
def test_other_tools_keep_their_numbers() -> None:
    monitoring = sys.monitoring  # type: ignore[attr-defined]
    monitoring.use_tool_id(_IDS[0], "another")
    try:
        started = Started()
        with watched(started, nothing):
            outer(1)
            assert monitoring.get_tool(_IDS[0]) == "another" and monitoring.get_tool(_IDS[1]) == "fast_compile"
        assert started.names == ["outer", "inner"]
    finally:
        monitoring.free_tool_id(_IDS[0])


@needs_monitoring
def test_no_number_is_left() -> None:
    monitoring = sys.monitoring  # type: ignore[attr-defined]
    free = [tool for tool in range(6) if monitoring.get_tool(tool) is None]
    for tool in free:
        monitoring.use_tool_id(tool, "another")
    try:
        with pytest.raises(NotWatched, match="in use"), watched(Started(), nothing):
            raise AssertionError("it began")
    finally:
        for tool in free:
            monitoring.free_tool_id(tool)
    started = Started()
    with watched(started, nothing):
        inner(1)
    assert started.names == ["inner"]


@needs_monitoring
def test_what_a_tool_of_the_same_number_had_forgotten_is_told() -> None:
    monitoring = sys.monitoring  # type: ignore[attr-defined]
    start, number = monitoring.events.PY_START, _IDS[0]

    def tool(told: Callable[[CodeType, int], Any]) -> None:
        monitoring.use_tool_id(number, "another")
        monitoring.register_callback(number, start, told)
        monitoring.set_events(number, start)
        outer(1)
        json.dumps({})
        monitoring.set_events(number, 0)
        monitoring.register_callback(number, start, None)
        monitoring.free_tool_id(number)

    tool(lambda code, offset: monitoring.DISABLE)
    started = Started()
    with watched(started, nothing):
        outer(1)
        json.dumps({})
    assert started.names == ["outer", "inner"]


def test_the_way_of_this_python() -> None:
    with watched(Started(), nothing) as watch:
        assert isinstance(watch, _Monitored if hasattr(sys, "monitoring") else _Profiled)


def test_where_nothing_is_watched() -> None:
    watch = Unwatched()
    watch.pause()
    watch.resume()
