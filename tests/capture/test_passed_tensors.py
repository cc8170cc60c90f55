"""Tensors that are passed and are something else besides: a weight, what an attribute or a list holds; and those that
others have put something on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core import CompileConfig, compile
from tests.models import Forward
from tests.tracing import guarded

X = torch.randn(2, 8)
TABLE = torch.ones(8)


def made(forward: Callable[..., torch.Tensor]) -> Any:
    net: Any = Forward(forward, lin=nn.Linear(8, 8)).eval().requires_grad_(False)
    net.register_buffer("buffer", torch.ones(8))
    net.value, net.values = torch.ones(8), [torch.ones(8)]
    return net


def marked(**attributes: Any) -> torch.Tensor:
    x = X.clone()
    x.__dict__.update(attributes)
    return x


class Box:
    def __init__(self, k: float) -> None:
        self.k = k


def calls(net: Any, *given: tuple[Any, ...]) -> Any:
    """Two rounds of these calls; each returns what the forward does."""
    handle = compile(net, CompileConfig(allow_cpu=True))
    with torch.no_grad():
        for args in given * 2:
            torch.testing.assert_close(handle(*args), net._function(net, *args))
    return handle.engine.report


def _linear(net: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return nn.functional.linear(net.lin(x), weight)


#: The forward, and where what is passed first is found.
PASSED: dict[str, tuple[Callable[..., torch.Tensor], Callable[[Any], torch.Tensor]]] = {
    "a weight": (_linear, lambda net: net.lin.weight),
    "a buffer": (lambda net, x, t: net.lin(x) * t + net.buffer, lambda net: net.buffer),
    "an attribute": (lambda net, x, t: net.lin(x) * t + net.value, lambda net: net.value),
    "an item of a list": (lambda net, x, t: net.lin(x) * t + net.values[0], lambda net: net.values[0]),
    "a global": (lambda net, x, t: net.lin(x) * t + TABLE, lambda net: TABLE),
}


@pytest.mark.parametrize("what", PASSED)
def test_what_is_passed_is_not_taken_for_where_it_was_found(what: str) -> None:
    forward, find = PASSED[what]
    net = made(forward)
    report = calls(net, (X, find(net)), (X, find(net) * 2))
    assert any("which the call may read" in reason for reason in report.reasons)


#: The forward, and what it knows when it is passed later.
KNOWN: dict[str, tuple[Callable[..., torch.Tensor], Callable[[Any], torch.Tensor]]] = {
    "an attribute": (lambda net, x, t: net.lin(x) * (2 if t is net.value else 3), lambda net: net.value),
    "a buffer": (lambda net, x, t: net.lin(x) * (2 if net.buffer is t else 3), lambda net: net.buffer),
    "an item of a list": (
        lambda net, x, t: net.lin(x) * (2 if any(t is each for each in net.values) else 3),
        lambda net: net.values[0],
    ),
    "a global": (lambda net, x, t: net.lin(x) * (2 if t is TABLE else 3), lambda net: TABLE),
}


@pytest.mark.parametrize("what", KNOWN)
def test_what_is_passed_is_told_from_what_was_passed_to_the_trace(what: str) -> None:
    forward, find = KNOWN[what]
    net = made(forward)
    report = calls(net, (X, torch.ones(8)), (X, torch.ones(8)), (X, find(net)), (X, torch.ones(8)))
    assert report.calls["fused"] >= 3


def test_what_an_attribute_holds_that_nobody_reads_is_only_an_input() -> None:
    net = made(_linear)
    net.value = torch.eye(8)
    report = calls(net, (X, net.value), (X, torch.ones(8, 8)))
    assert report.calls == {"traced": 1, "fused": 3}


def test_another_tensor_with_the_same_memory_is_only_an_input() -> None:
    report = calls(made(_linear), (X, torch.eye(8)), (X, torch.ones(8, 8)))
    assert report.calls == {"traced": 1, "fused": 3}


@pytest.mark.parametrize(
    "attributes",
    [
        ({"k": 1.0}, {"k": 2.0}),
        ({}, {"k": 2.0}),
        ({"k": 1.0}, {"k": 1.0, "n": 0}),
        ({"k": torch.ones(8)}, {"k": torch.zeros(8)}),
    ],
    ids=["a number", "one that it may have", "one more", "a tensor"],
)
def test_what_others_have_put_on_a_tensor_that_is_passed(attributes: Any) -> None:
    calls(
        made(lambda net, x: net.lin(x) * getattr(x, "k", 3.0) + getattr(x, "n", 1)),
        *((marked(**each),) for each in attributes),
    )


@pytest.mark.parametrize(
    ("forward", "make"),
    [(lambda net, x: net.lin(x) * x.k.k, Box), (lambda net, x: x.k(net.lin(x)), lambda k: lambda y: y * k)],
)
def test_what_can_not_be_compared_of_it_is_read_at_each_call(forward: Any, make: Any) -> None:
    report = calls(made(forward), (marked(k=make(1.0)),), (marked(k=make(2.0)),))
    assert report.reasons and not report.calls.get("fused")


def test_what_nobody_reads_of_it_is_no_reason() -> None:
    report = calls(made(lambda net, x: net.lin(x)), (marked(k=Box(1.0)),), (marked(k=Box(2.0)),))
    assert report.calls == {"traced": 1, "fused": 3}


def test_one_that_lies_where_another_was_is_not_that() -> None:
    """A tensor of a list is gone, and what is passed next has its place in memory."""
    net = made(lambda net, x: net.lin(x) if any(x is each for each in net.values) else net.lin(x) * len(net.values))
    _, _, guard = guarded(net, X)
    place, others = id(net.values[0]), []
    net.values[0] = torch.ones(8)
    while id(passed := torch.randn(2, 8)) != place and len(others) < 10_000:
        others.append(passed)
    assert id(passed) == place and guard.decided([passed]) and guard.changed(net) is None
    assert guard.decided([X])
