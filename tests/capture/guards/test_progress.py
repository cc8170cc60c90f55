"""A progress bar of tqdm's around a loop: one that is off leaves no trace of its own, one that is on is seen at each call."""

from __future__ import annotations

import importlib
import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core import CompileConfig, compile
from tests.models import Forward

# As tqdm has it: a lock of several processes, a set of the bars that there are, and a count.
_TQDM = """
import multiprocessing
import weakref


class tqdm:
    _lock = multiprocessing.RLock()
    _all = weakref.WeakSet()

    def __init__(self, iterable=(), file=None, disable=False):
        with self._lock:
            self._all.add(self)
        self.iterable, self.file, self.disable, self.n = iterable, file, disable, 0
        if disable:
            self._all.remove(self)

    def __iter__(self):
        for each in self.iterable:
            yield each
            self.update()

    def update(self):
        if not self.disable:
            self.n += 1
            if self.file is not None:
                self.file.write(f"{self.n} ")
"""


@pytest.fixture
def tqdm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A package of tqdm's name, in the place of whichever there is."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "tqdm"]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "tqdm").mkdir()
    (tmp_path / "tqdm" / "__init__.py").write_text(_TQDM)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield importlib.import_module("tqdm").tqdm
    del sys.modules["tqdm"]


def made(forward: Callable[[Any, torch.Tensor], torch.Tensor], **given: Any) -> Any:
    layers = nn.ModuleList([nn.Linear(8, 8), nn.Tanh()])
    net: Any = Forward(forward, layers=layers).requires_grad_(False)
    vars(net).update(given)
    return net


def called(net: Any) -> dict[str, int]:
    handle, x = compile(net, CompileConfig(allow_cpu=True)), torch.randn(2, 8)
    with torch.no_grad():
        for _ in range(4):
            expected = x
            for layer in net.layers:
                expected = layer(expected)
            torch.testing.assert_close(handle(x), expected)
    return dict(handle.engine.report.calls)


def within(bar: Callable[..., Any], net: Any, x: torch.Tensor, **given: Any) -> torch.Tensor:
    for layer in bar(net.layers, **given):
        x = layer(x)
    return x


def test_one_that_is_off_is_no_reason(tqdm: Any) -> None:
    net = made(lambda net, x: within(net.bar, net, x, disable=True), bar=tqdm)
    assert called(net) == {"traced": 1, "fused": 3}
    net.layers.append(nn.ReLU())  # what it goes through is read all the same
    assert called(net)["traced"] == 2


def test_what_one_writes_is_written_at_each_call(tqdm: Any) -> None:
    net = made(lambda net, x: within(net.bar, net, x, file=SHOWN), bar=tqdm)
    SHOWN.truncate(0)
    assert not called(net).get("fused")
    assert SHOWN.getvalue().count("1 2 ") == 4


def test_one_that_is_kept_counts_on(tqdm: Any) -> None:
    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        for layer in net.layers:
            x = layer(x)
        net.bar.update()
        return x

    net = made(forward, bar=tqdm())
    assert not called(net).get("fused")
    assert net.bar.n == 4


class Shown(io.StringIO):
    """Nothing of it is read."""


SHOWN = Shown()
