"""Tensors that a forward makes of NumPy arrays."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sfast_core import CompileConfig, compile
from sfast_core.capture import Trace, Untraceable
from sfast_core.capture.arrays import arrays_seen
from tests.models import Forward
from tests.tracing import evaluate, same, try_record


def module(function: Callable[..., Any], **attributes: Any) -> Any:
    torch.manual_seed(0)
    net = Forward(function, lin=nn.Linear(8, 8)).requires_grad_(False)
    for name, value in attributes.items():
        setattr(net, name, value)
    return net


def positions(net: Any, x: torch.Tensor) -> torch.Tensor:
    """As HunyuanDiT makes its rotary embedding."""
    grid = np.meshgrid(
        np.linspace(0, net._until, x.shape[1], endpoint=False, dtype=np.float32), np.arange(2, dtype=np.float32)
    )
    angles = torch.outer(torch.from_numpy(grid[0].reshape(-1)[: x.shape[1]]), torch.arange(8).float())
    return net.lin(x) * angles.cos().to(x)[: x.shape[0]]


def test_what_is_computed_of_numbers_is_a_constant() -> None:
    twin, handle = module(positions, _until=3), compile(module(positions, _until=3), CompileConfig(allow_cpu=True))
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(4, 8)
            torch.testing.assert_close(handle(x), twin(x))
        twin._until = handle.module._until = 5
        torch.testing.assert_close(handle(x), twin(x))
    assert handle.engine.report.calls == {"traced": 2, "fused": 2}, handle.engine.report.reasons


def test_an_array_of_the_module_is_compared_at_each_call() -> None:
    function = lambda net, x: net.lin(x) + torch.from_numpy(net._array)  # noqa: E731
    twin, handle = (
        module(function, _array=np.ones(8, np.float32)),
        compile(module(function, _array=np.ones(8, np.float32)), CompileConfig(allow_cpu=True)),
    )
    with torch.no_grad():
        for number in (1, 1, 2, 2, 1):
            for net in (twin, handle.module):
                net._array[3] = number
            x = torch.randn(4, 8)
            torch.testing.assert_close(handle(x), twin(x))
    assert handle.engine.report.calls == {"traced": 2, "fused": 3}


def test_the_trace_keeps_a_copy() -> None:
    _, found = try_record(
        module(lambda net, x: x + torch.from_numpy(np.full(8, np.nan, np.float32))), torch.randn(4, 8)
    )
    assert isinstance(found, Trace)
    (result,) = evaluate(found.graph, [torch.ones(4, 8)])
    assert result.isnan().all()


def test_an_array_of_a_tensor_is_a_value_read_into_python() -> None:
    _, found = try_record(module(lambda net, x: x + torch.from_numpy(net.lin(x).detach().numpy())), torch.randn(4, 8))
    assert isinstance(found, Untraceable) and "reads a tensor's value" in found.reason


def test_an_array_that_is_written_to_meanwhile_leaves_no_trace() -> None:
    def function(net: Any, x: torch.Tensor) -> torch.Tensor:
        array = np.ones(8, np.float32)
        made = torch.from_numpy(array)
        array[2] = 2
        return x + made

    _, found = try_record(module(function), torch.randn(4, 8))
    assert (
        isinstance(found, Untraceable) and found.reason == "the call changes a NumPy array that it has made a tensor of"
    )


def test_random_arrays_leave_no_trace() -> None:
    _, found = try_record(
        module(lambda net, x: x + torch.from_numpy(np.random.rand(8).astype(np.float32))), torch.randn(4, 8)
    )
    assert isinstance(found, Untraceable) and "random numbers" in found.reason


def test_the_function_is_put_back_and_other_threads_have_theirs() -> None:
    original, seen, inside, done = torch.from_numpy, [], threading.Event(), threading.Event()
    array = np.ones(3, np.float32)

    def other() -> None:
        inside.wait(10)
        with arrays_seen(lambda make, array: seen.append("theirs") or make(array)):
            torch.from_numpy(array)
            done.set()

    thread = threading.Thread(target=other)
    thread.start()
    with arrays_seen(lambda make, array: seen.append("mine") or make(array)):
        inside.set()
        assert done.wait(10)
        same(torch.from_numpy(array), torch.ones(3))
    thread.join()
    assert seen == ["theirs", "mine"] and torch.from_numpy is original


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_forked_child_has_the_function_itself() -> None:
    original = torch.from_numpy
    with arrays_seen(lambda make, array: make(array)):
        assert torch.from_numpy is not original
        forked: list[int] = []
        thread = threading.Thread(target=lambda: forked.append(_exit_code(lambda: torch.from_numpy is original)))
        thread.start()
        thread.join()
    assert forked == [0]


def _exit_code(check: Callable[[], bool]) -> int:
    child = os.fork()
    if not child:
        os._exit(0 if check() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
