"""Calls that write into the tensors that they are given: each does so again, in its own tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sfast_core import CompileConfig, compile
from sfast_core.capture import Trace, Untraceable, recording
from tests.live import Host
from tests.models import Forward
from tests.tracing import try_record

NAME = "fast_compile_input_writes"
Function = Callable[..., Any]


@pytest.fixture(scope="module", autouse=True)
def library() -> Iterator[Any]:
    library = torch.library.Library(NAME, "DEF")
    library.define("mix_(Tensor(a!) x, Tensor y) -> ()")
    library.impl("mix_", _mix, "CPU")
    yield library


def _mix(x: torch.Tensor, y: torch.Tensor) -> None:
    x.mul_(2).add_(y)


def padded(net: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """As HunyuanDiT puts its padding into the prompt where the mask says so."""
    x[:, -4:] = torch.where(y[:, -4:] > 0, x[:, -4:], net.lin.bias[-4:])
    return net.lin(torch.cat([x, y]))


def twice(net: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.mul_(0.5)
    before = net.lin(x)
    x += y
    return before + net.lin(x)


def through_a_view(net: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.view(2, 2, 8)[:, 0, 1:5].add_(y[:2, :4])
    return net.lin(x)


def both(net: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.copy_(y)
    y.zero_()
    return net.lin(x) + y


def itself(net: Any, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return F.relu(x, inplace=True), net.lin(y)


def by_an_operator(net: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    getattr(torch.ops, NAME).mix_(x, y=y)
    return net.lin(x)


def by_out(net: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """As the blocks of ComfyUI's language models add up in their first input."""
    torch.add(x, net.lin(y), out=x)
    return net.lin(x)


WRITES: dict[str, Function] = {
    "an assignment": padded, "twice": twice, "a view of a view": through_a_view, "two inputs": both, "what is returned": itself, "an operator's": by_an_operator, "by out=": by_out,
}  # fmt: skip


def module(function: Function) -> Any:
    torch.manual_seed(0)
    return Forward(function, lin=nn.Linear(8, 8)).requires_grad_(False)


@pytest.mark.parametrize("name", WRITES)
def test_each_call_writes_to_its_own_inputs(name: str) -> None:
    function = WRITES[name]
    twin, handle = module(function), compile(module(function), CompileConfig(allow_cpu=True))
    with torch.no_grad():
        for _ in range(4):
            mine = [torch.randn(4, 8), torch.randn(4, 8)]
            theirs = [tensor.clone() for tensor in mine]
            torch.testing.assert_close(handle(*mine), twin(*theirs))
            torch.testing.assert_close(mine, theirs)
    assert handle.engine.report.calls == {"traced": 1, "fused": 3}, handle.engine.report.reasons


def test_what_lies_around_an_input_that_is_a_view_stays() -> None:
    twin, handle = module(padded), compile(module(padded), CompileConfig(allow_cpu=True))
    with torch.no_grad():
        for _ in range(3):
            mine, y = torch.randn(9, 12), torch.randn(4, 8)
            theirs = mine.clone()
            torch.testing.assert_close(handle(mine[1::2, 2:10], y), twin(theirs[1::2, 2:10], y))
            torch.testing.assert_close(mine, theirs)
    assert handle.engine.report.calls == {"traced": 1, "fused": 2}


@pytest.mark.parametrize("shared", ["an input", "a part of an input", "a weight"])
def test_a_call_whose_input_shares_memory_runs_as_it_was(shared: str) -> None:
    """What is read there after the write is another thing than in the recorded call.

    The program serves the next call that is like that one.
    """

    def function(net: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return net.lin(y)

    def given(net: Any) -> list[torch.Tensor]:
        if shared == "a weight":
            return [net.lin.weight.data[:4], torch.ones(4, 8)]
        whole = torch.ones(6, 8)
        return [whole[:4], whole[2:] if shared == "a part of an input" else whole[:4]]

    twin, mine = module(function), module(function)
    handle = compile(mine, CompileConfig(allow_cpu=True))
    with torch.no_grad():
        for _ in range(2):
            x = torch.randn(4, 8)
            torch.testing.assert_close(handle(x.clone(), x), twin(x.clone(), x))
        inputs, others = given(mine), given(twin)
        torch.testing.assert_close(handle(*inputs), twin(*others))
        torch.testing.assert_close(inputs, others)
        torch.testing.assert_close(handle(x.clone(), x), twin(x.clone(), x))
    assert handle.engine.report.calls == {"traced": 1, "fused": 2, "eager": 1}
    assert any("shares memory with another one or with a weight" in reason for reason in handle.engine.report.reasons)


def test_the_first_call_of_inputs_that_share_memory_leaves_no_trace() -> None:
    whole = torch.randn(6, 8)
    _, found = try_record(module(padded), whole[:4], whole[2:])
    assert isinstance(found, Untraceable) and "writes to an input or a weight in place" in found.reason


def test_an_input_that_overlaps_itself_leaves_no_trace() -> None:
    _, found = try_record(module(lambda net, x: x[0].add_(1) + net.lin(x)), torch.randn(1, 8).expand(4, 8))
    assert isinstance(found, Untraceable) and "writes to an input or a weight in place" in found.reason


def test_a_write_that_is_not_seen_is_still_noticed_behind_one_that_is() -> None:
    def function(net: Any, x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        with torch._C.DisableTorchFunction():
            x.mul_(2)
        return net.lin(x)

    _, found = try_record(module(function), torch.randn(4, 8))
    assert isinstance(found, Untraceable) and found.reason == "the call changes an input in place"


def test_a_tensor_of_the_module_that_becomes_what_was_written_to_is_no_effect() -> None:
    """The next call reads it."""

    def function(net: Any, x: torch.Tensor) -> torch.Tensor:
        kept, net._kept = net._kept, x
        x.add_(1)
        return net.lin(x) if kept is None else net.lin(x + kept)

    net = module(function)
    net._kept = torch.zeros(4, 8)
    _, found = try_record(net, torch.randn(4, 8))
    assert isinstance(found, Untraceable) and "changes the module" in found.reason


def test_code_that_runs_live_sees_the_input_as_it_is() -> None:
    """So a call that has such runs as it was."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
            x.add_(1)
            (function,) = options["before"]
            return self.lin(function(x, options))

    host = Host(Net())
    for _ in range(3):
        x = torch.randn(2, 5, 8)
        mine, theirs = x.clone(), x.clone()
        torch.testing.assert_close(
            host(mine, before=[lambda x, options: x * 2]), host.eager(theirs, before=[lambda x, options: x * 2])
        )
        assert torch.equal(mine, theirs)
    assert host.calls == {"traced": 1, "eager": 2}


def test_a_recording_that_fails_leaves_inputs_to_the_plain_call_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(net: Any, x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        if recording():
            torch.empty(2) @ torch.empty(3)  # as a function may that doesn't bear being recorded
        return net.lin(x)

    handle, x = compile(module(function), CompileConfig(allow_cpu=True)), torch.zeros(4, 8)
    with torch.no_grad():
        handle(x)
    assert handle.engine.report.calls == {"eager": 1} and torch.equal(x, torch.ones(4, 8))


def test_calls_that_write_to_nothing_keep_nothing() -> None:
    _, found = try_record(module(lambda net, x: net.lin(x).add_(1)), torch.randn(4, 8))
    assert isinstance(found, Trace) and found.outputs.writes.indices == ()
