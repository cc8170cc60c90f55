"""What a forward reads is switched and switched back: the trace that was made for it is used again.

And how much of that is kept.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core import CompileConfig, CompiledModule, compile
from tests.capturing import pretend_graphs
from tests.models import Forward

X = torch.linspace(-1.0, 2.0, 16).reshape(2, 8)


def compiled(
    forward: Callable[[Any, torch.Tensor], torch.Tensor], max_signatures: int = 64, **attributes: Any
) -> CompiledModule:
    net = Forward(forward, linear=nn.Linear(8, 8)).requires_grad_(False)
    for name, value in attributes.items():
        setattr(net, name, value)
    return compile(net, CompileConfig(allow_cpu=True, max_signatures=max_signatures))


def check(handle: CompiledModule, x: torch.Tensor = X) -> None:
    with torch.no_grad():
        torch.testing.assert_close(handle(x), type(handle.module).forward(handle.module, x))


def scaled(net: Any, x: torch.Tensor) -> torch.Tensor:
    return net.linear(x) * net.scale


def kept(handle: CompiledModule) -> int:
    return len(handle.engine.report.signatures)


def test_what_is_switched_back_is_not_traced_again() -> None:
    handle = compiled(scaled, scale=1.0)
    for scale in (1.0, 2.0, 1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 3.0, 1.0):
        handle.module.scale = scale
        check(handle)
    calls = handle.engine.report.calls
    assert calls["traced"] == 3 and calls["fused"] == 7 and kept(handle) == 3


_LAST: float | None = None


def scaled_and_noted(net: Any, x: torch.Tensor) -> torch.Tensor:
    """As psutil keeps what it found last, which attention on a CPU asks at each call."""
    global _LAST
    _LAST = 3.0
    return scaled(net, x)


def test_a_name_of_a_file_that_is_only_set_is_no_reason_to_forget(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = compiled(scaled_and_noted, scale=1.0)
    for scale in (1.0, 2.0, 1.0, 2.0):
        handle.module.scale = scale
        monkeypatch.setitem(globals(), "_LAST", None)
        with torch.no_grad():
            made = handle(X)
        assert _LAST == 3.0 and torch.allclose(made, scaled(handle.module, X))
    assert handle.engine.report.calls == {"traced": 2, "fused": 2}


def test_a_switch_is_of_its_own_for_each_signature() -> None:
    handle = compiled(scaled, scale=1.0)
    for scale in (1.0, 2.0, 1.0, 2.0):
        handle.module.scale = scale
        check(handle), check(handle, X[:1])
    assert handle.engine.report.calls["traced"] == 4 and kept(handle) == 4


def test_what_runs_as_it_was_does_so_again() -> None:
    handle = compiled(lambda net, x: net.linear(x) * (float(x.sum()) if net.reads else 2.0), reads=False)
    for reads in (False, True, False, True, True, False):
        handle.module.reads = reads
        check(handle)
    calls = handle.engine.report.calls
    assert calls["traced"] == 2 and calls["fused"] == calls["eager"] == 2, handle.report().text()


def test_of_one_signature_four_are_kept_that_were_used_last() -> None:
    handle = compiled(scaled, scale=0.0)
    for scale in (1.0, 2.0, 3.0, 4.0, 1.0, 5.0):
        handle.module.scale = scale
        check(handle)
    assert handle.engine.report.calls["traced"] == 5 and kept(handle) == 4
    for scale in (1.0, 3.0, 4.0, 5.0):
        handle.module.scale = scale
        check(handle)
    assert handle.engine.report.calls["traced"] == 5
    handle.module.scale = 2.0
    check(handle)
    assert handle.engine.report.calls["traced"] == 6 and kept(handle) == 4


def test_in_all_no_more_are_kept_than_signatures() -> None:
    handle = compiled(scaled, max_signatures=3, scale=1.0)
    for scale in (1.0, 2.0):
        handle.module.scale = scale
        check(handle), check(handle, X[:1])
    assert handle.engine.report.calls["traced"] == 4 and kept(handle) == 3
    check(handle), check(handle, X[:1])
    assert handle.engine.report.calls["traced"] == 4


def test_weights_that_changed_meanwhile_are_noticed() -> None:
    handle = compiled(scaled, scale=1.0)
    for scale in (1.0, 2.0):
        handle.module.scale = scale
        check(handle)
    handle.module.linear.weight = nn.Parameter(torch.ones(4, 8), requires_grad=False)
    handle.module.linear.bias = None
    for scale in (1.0, 2.0, 1.0):
        handle.module.scale = scale
        check(handle)


def test_a_module_that_is_replaced_is_freed() -> None:
    handle = compiled(scaled, scale=1.0)
    check(handle)
    gone = weakref.ref(handle.module.linear)
    gc.collect()
    gc.disable()
    try:
        handle.module.linear = nn.Linear(8, 8).requires_grad_(False)
        check(handle)
        assert gone() is None
    finally:
        gc.enable()


def test_a_tensor_that_is_replaced_is_freed() -> None:
    handle = compiled(lambda net, x: net.linear(x) * net.tables[0], tables=[torch.ones(8)])
    for step in range(3):
        check(handle)
        gone = weakref.ref(handle.module.tables[0])
        handle.module.tables[0] = torch.full((8,), 2.0 + step)
        check(handle)
        assert gone() is None


def test_graphs_of_what_was_switched_back_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = pretend_graphs(monkeypatch)
    handle = compiled(scaled, scale=1.0)
    for scale in (1.0, 2.0):
        handle.module.scale = scale
        for _ in range(3):
            check(handle)
        assert graphs.captures == scale and len(graphs._graphs) == 1, "one that may never be used again has none"
    assert handle.engine.report.calls["replayed"] == 4
    for scale in (1.0, 2.0, 1.0, 2.0):
        handle.module.scale = scale
        check(handle)
    assert graphs.captures == 3 and handle.engine.report.calls["replayed"] == 8
    handle.engine.release_graphs()
    assert graphs.bytes == 0
    handle.engine.reset()
    assert kept(handle) == 0


class Box:
    def times(self, x: torch.Tensor) -> torch.Tensor:
        return x * 1


class Crate(Box):
    def times(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def test_what_the_call_itself_switches_to_and_fro_is_switched_at_each_call() -> None:
    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        net.box.__class__ = Crate if type(net.box) is Box else Box
        return net.box.times(net.linear(x))

    handle = compiled(forward, box=Box())
    with torch.no_grad():
        for step in range(6):
            torch.testing.assert_close(handle(X), handle.module.linear(X) * (2 - step % 2))
