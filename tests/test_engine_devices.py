"""One engine, several devices; a child that is forked; a report while a call runs. Devices are pretended on a CPU."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core import CompileConfig, CompiledModule, compile
from sfast_core.engine import Engine
from sfast_core.machine.choices import Choices
from sfast_core.runtime.graph_lifetimes import ENOUGH_CALLS
from sfast_core.runtime.graphs import DeviceGraphs
from sfast_core.runtime.store import WeightStore
from tests.fakes import FakeBackend
from tests.models import Forward

pytestmark = pytest.mark.usefixtures("no_gradients")

CPU, ONE, TWO = (torch.device(name) for name in ("cpu", "cpu:1", "cpu:2"))


class Pretended:
    """The device that a thread's calls are said to run on. All memory is the CPU's."""

    def __init__(self) -> None:
        self.graphs = {device: DeviceGraphs(FakeBackend()) for device in (ONE, TWO)}
        self._thread = threading.local()

    def now(self, *_: Any) -> torch.device:
        found: torch.device = getattr(self._thread, "device", CPU)
        return found

    def move(self, device: torch.device, net: nn.Module | None = None) -> None:
        """This thread's calls run there from now on, and the module's parameters lie elsewhere, as behind
        ``net.to(device)``.
        """
        self._thread.device = device
        for parameter in net.parameters() if net is not None else ():
            parameter.data = parameter.detach().clone()


class Store(WeightStore):
    """Takes every tensor for one on the device that is asked for."""

    def tensors(self, sources: Any, device: torch.device) -> list[torch.Tensor]:
        return super().tensors(sources, CPU)

    def resolve(self, sources: Any, device: torch.device, arrivals: Any) -> Any:
        return super().resolve(sources, CPU, arrivals)

    def may_pack(self, weight: Any, device: torch.device | None = None) -> bool:
        return super().may_pack(weight)


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> Pretended:
    found = Pretended()
    monkeypatch.setattr("sfast_core.engine.device_of", found.now)
    monkeypatch.setattr("sfast_core.engine.device_graphs", found.graphs.get)
    monkeypatch.setattr("sfast_core.programs.compiled_state.WeightStore", Store)
    monkeypatch.setattr("sfast_core.lowering._choices", lambda target: Choices(None))
    monkeypatch.setattr("sfast_core.lowering._why_not_capturable", lambda graph, device: None)
    return found


def compiled(function: Callable[..., Any] = lambda net, x: net.lin(x).relu()) -> CompiledModule:
    return compile(Forward(function, lin=nn.Linear(4, 4)), CompileConfig(allow_cpu=True))


def check(handle: CompiledModule, rows: int = 2) -> None:
    x = torch.randn(rows, 4, generator=torch.Generator().manual_seed(rows))  # not from what all threads draw from
    torch.testing.assert_close(handle(x), type(handle.module).forward(handle.module, x))


# -- several devices -----------------------------------------------------------------------------------------------


def test_a_module_that_moves_keeps_what_it_had_for_each_device(pretended: Pretended) -> None:
    handle = compiled()
    for device in (ONE, CPU, TWO):
        pretended.move(device, handle.module)
        for rows in (2, 3) * (1 + ENOUGH_CALLS):
            check(handle, rows)
    report = handle.engine.report
    assert report.calls["traced"] == 6 and len(report.signatures) == 6 and not report.reasons
    for device in (TWO, ONE, CPU, ONE):
        pretended.move(device, handle.module)
        for rows in (2, 3):
            check(handle, rows)
        assert report.device == str(device) and handle.engine.device == device
    assert report.calls["traced"] == 6 and report.calls["replayed"] == 4 * ENOUGH_CALLS + 6 and not report.reasons
    handle.engine.reset()
    assert not report.signatures and not any(graphs.bytes for graphs in pretended.graphs.values())


def test_graphs_of_weights_that_have_left_the_device_go(pretended: Pretended) -> None:
    handle = compiled()
    pretended.move(ONE)
    check(handle), check(handle)
    assert pretended.graphs[ONE].bytes
    pretended.move(TWO, handle.module)
    check(handle), check(handle)
    assert not pretended.graphs[ONE].bytes and pretended.graphs[TWO].bytes == handle.engine.report.graph_bytes


@pytest.mark.parametrize("dynamo", [False, True], ids=["", "beside torch.compile"])
def test_two_threads_on_two_devices_are_in_calls_at_once(pretended: Pretended, dynamo: bool) -> None:
    if dynamo:
        importlib.import_module("torch._dynamo")
    meeting = threading.Barrier(2)

    @contextmanager
    def both_are_recorded(recorder: Any) -> Iterator[None]:
        meeting.wait(60)
        yield
        meeting.wait(60)

    handle, wrong = compiled(), list[Exception]()
    handle.engine.tracer._leaf_scope = both_are_recorded

    def run(device: torch.device) -> None:
        pretended.move(device)
        try:
            with torch.no_grad():
                for _ in range(20):
                    check(handle)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=run, args=(device,)) for device in (ONE, TWO)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not wrong and handle.engine.report.calls == {"traced": 2, "replayed": 38}
    assert all(graphs.captures == 1 for graphs in pretended.graphs.values())
    assert not dynamo or torch._dynamo.eval_frame._stance.stance == "default"


def test_restore_reaches_every_device(pretended: Pretended) -> None:
    handle = compile(nn.Sequential(nn.Conv2d(4, 8, 3)).requires_grad_(False), CompileConfig(allow_cpu=True))
    x, weight = torch.randn(1, 4, 6, 6), handle.module[0].weight.clone()
    for device in (ONE, TWO):
        pretended.move(device)
        handle(x), handle(x)
    assert all(graphs.bytes for graphs in pretended.graphs.values()) and not handle.module[0].weight.is_contiguous()
    handle.engine.restore()
    assert not any(graphs.bytes for graphs in pretended.graphs.values())
    assert handle.module[0].weight.is_contiguous() and torch.equal(handle.module[0].weight, weight)


# -- while another thread is inside a call -------------------------------------------------------------------------


class Inside:
    """A thread that stays in the first call of a compiled module until it is let go."""

    def __init__(self) -> None:
        self.arrived, self.go = threading.Event(), threading.Event()
        self.handle = compiled(self._forward)
        self.thread = threading.Thread(target=self._call)
        self._parent = os.getpid()

    def _forward(self, net: Any, x: torch.Tensor) -> torch.Tensor:
        if os.getpid() == self._parent and threading.current_thread() is self.thread:
            self.arrived.set()
            self.go.wait(60)
        y: torch.Tensor = net.lin(x)
        return y

    def _call(self) -> None:
        with torch.no_grad():
            self.handle(torch.randn(2, 4))

    def __enter__(self) -> CompiledModule:
        self.thread.start()
        assert self.arrived.wait(60)
        return self.handle

    def __exit__(self, *_: Any) -> None:
        self.go.set()
        self.thread.join(60)


def test_the_report_answers_while_a_call_runs() -> None:
    answered: list[str] = []
    with Inside() as handle:
        asking = threading.Thread(
            target=lambda: (handle.engine.forget_evicted(), answered.append(handle.report().text()))
        )
        asking.start(), asking.join(30)
        assert answered and "Forward on cpu" in answered[0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_child_that_is_forked_meanwhile_can_call_too() -> None:
    with Inside() as handle:
        child = os.fork()
        if not child:
            ended = 1
            try:
                torch.manual_seed(3)
                check(handle), check(handle)
                handle.engine.restore()
                fine = (
                    gc.isenabled()
                    and handle.engine.report.calls["traced"] == 1
                    and len(handle.engine.report.signatures) == 1
                )
                ended = 0 if fine else 2
            finally:
                os._exit(ended)
        until = time.monotonic() + 60
        ended, status = 0, 0
        while not ended and time.monotonic() < until:
            ended, status = os.waitpid(child, os.WNOHANG)
            time.sleep(0.01)
        if not ended:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        assert ended and os.waitstatus_to_exitcode(status) == 0
    check(handle)
    assert handle.engine.report.calls == {"traced": 2}  # the forward asks which thread it is in


def test_a_child_leaves_the_parents_graphs_alone() -> None:
    graphs = DeviceGraphs(FakeBackend())
    captured = graphs.capture([torch.zeros(2)], lambda inputs: [inputs[0] * 2], None)
    graphs.backend.events.clear()
    graphs.renew()
    graphs.release(captured)
    assert graphs.release_all() == 0 and graphs.bytes == 0 and not captured.alive and not graphs.backend.events


def test_an_engine_is_not_held_by_what_renews_it_in_children() -> None:
    gone = weakref.ref(Engine("net", CompileConfig()))
    assert gone() is None
