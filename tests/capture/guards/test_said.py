"""What a call prints, logs, warns of or writes is said at each call, as it is without us; said once, it costs a call."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import logging
import logging.handlers
import queue
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core import CompileConfig, compile
from tests.models import Forward

LOGGER = logging.getLogger("of a model that says something")
LOGGER.propagate = False
CALLS = 5


class Tee(io.StringIO):
    """What somebody has put into the place of the output."""

    def write(self, text: str) -> int:
        return super().write(text.upper())


def _prints(net: Any) -> None:
    print("shape")


def _prints_elsewhere(net: Any) -> None:
    net.to.files[0].write("shape")


def _logs(net: Any) -> None:
    LOGGER.info("shape")


def _warns(net: Any) -> None:
    warnings.warn("shape", stacklevel=1)


def _fails(net: Any) -> None:
    try:
        raise ValueError("shape")
    except ValueError:
        traceback.print_exc()


SAYING: dict[str, Callable[[Any], None]] = {
    "print": _prints,
    "a file in a list": _prints_elsewhere,
    "a logger": _logs,
    "a warning": _warns,
    "a traceback": _fails,
}


class _Files:
    """Where it is written to, which no copy of a model has a copy of."""

    def __init__(self) -> None:
        self.files: list[Any] = []

    def __deepcopy__(self, memo: object) -> _Files:
        return self


TO = _Files()


def _forward(net: Any, x: torch.Tensor) -> torch.Tensor:
    net.say(net)
    return net.linear(x)


def _net(say: Callable[[Any], None]) -> Any:
    net = Forward(_forward, linear=nn.Linear(4, 4)).requires_grad_(False)
    net.say, net.to = say, TO
    return net


@contextlib.contextmanager
def _hearing(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """All that is said. No fixture: pytest has an output and filters of its own for each part of a test."""
    text = io.StringIO()
    monkeypatch.setattr(LOGGER, "handlers", [logging.StreamHandler(text)])
    monkeypatch.setattr(LOGGER, "level", logging.INFO)
    monkeypatch.setattr(TO, "files", [text])
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text), warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *where, **more: print(message, file=text)
        yield text


def _calls(net: nn.Module) -> None:
    with torch.no_grad():
        for step in range(CALLS):
            net(torch.full((2, 4), float(step)))


def _said_in(heard: io.StringIO) -> int:
    said = heard.getvalue().lower().count("shape")
    heard.seek(0)
    heard.truncate()
    return said


@pytest.mark.parametrize("how", SAYING)
@pytest.mark.parametrize("inside", [False, True])
def test_it_is_said_at_each_call(monkeypatch: pytest.MonkeyPatch, how: str, inside: bool) -> None:
    """``inside``: by a module within the model, which runs live."""
    with _hearing(monkeypatch) as heard:
        said = _net(SAYING[how])
        net = nn.Sequential(nn.Linear(4, 4), said, nn.Linear(4, 4)).requires_grad_(False) if inside else said
        twin = copy.deepcopy(net)
        _calls(twin)
        expected = _said_in(heard)
        handle = compile(net, CompileConfig(allow_cpu=True))
        _calls(handle)
        assert _said_in(heard) == expected >= CALLS
        if inside and how in ("print", "a logger", "a warning"):  # what reads a file leaves no trace for that
            assert handle.engine.report.calls["fused"]


def test_to_something_in_the_place_of_the_output() -> None:
    net, to = _net(_prints), Tee()
    with contextlib.redirect_stdout(to):
        _calls(compile(net, CompileConfig(allow_cpu=True)))
    assert to.getvalue().count("SHAPE") == CALLS


def test_to_a_queue_and_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with _hearing(monkeypatch):
        waiting: queue.Queue[Any] = queue.Queue()
        handlers = [logging.handlers.QueueHandler(waiting), logging.FileHandler(tmp_path / "log")]
        monkeypatch.setattr(LOGGER, "handlers", handlers)
        _calls(compile(_net(_logs), CompileConfig(allow_cpu=True)))
        handlers[1].close()
        assert waiting.qsize() == (tmp_path / "log").read_text().count("shape") == CALLS


@pytest.mark.parametrize("how", ["a warning", "a logger, by a cache"])
def test_what_is_said_once_costs_one_call(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    with _hearing(monkeypatch) as heard:
        once = functools.lru_cache(LOGGER.info)
        net = _net(SAYING["a warning"] if how == "a warning" else lambda net: once("shape"))
        warnings.simplefilter("default")
        globals().pop("__warningregistry__", None)
        handle = compile(net, CompileConfig(allow_cpu=True))
        _calls(handle)
        assert _said_in(heard) == 1
        assert handle.engine.report.calls == {"eager": 1, "traced": 1, "fused": CALLS - 2}


def test_what_is_filtered_is_said_when_it_is_not_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    with _hearing(monkeypatch) as heard:
        warning, logging_ = (
            compile(_net(SAYING[how]), CompileConfig(allow_cpu=True)) for how in ("a warning", "a logger")
        )
        warnings.simplefilter("ignore")
        LOGGER.setLevel(logging.WARNING)
        for handle in (warning, logging_):
            _calls(handle)
            assert handle.engine.report.calls == {"traced": 1, "fused": CALLS - 1}
        assert _said_in(heard) == 0
        warnings.simplefilter("always")
        LOGGER.setLevel(logging.INFO)
        for handle in (warning, logging_):
            _calls(handle)
            assert _said_in(heard) >= CALLS


def test_text_that_goes_with_the_call_says_nothing() -> None:
    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        text = io.StringIO()
        text.write("2")
        return net.linear(x) * int(text.getvalue())

    handle = compile(Forward(forward, linear=nn.Linear(4, 4)).requires_grad_(False), CompileConfig(allow_cpu=True))
    _calls(handle)
    assert handle.engine.report.calls == {"traced": 1, "fused": CALLS - 1}
