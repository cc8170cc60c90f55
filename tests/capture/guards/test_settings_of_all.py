"""A call that sets what all code of the process goes by, or what a tensor of the caller's wants: a program would not."""

from __future__ import annotations

import functools
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._tensor_str import PRINT_OPTS

from sfast_core import CompileConfig, compile
from tests.models import Forward


def _handler(*_: Any) -> None:
    """Of a signal."""


#: What the forward sets, what is there then, and what puts it back.
SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[], Any], Callable[[Any], Any]]] = {
    "threads": (
        lambda: torch.set_num_threads(torch.get_num_threads() + 1),
        torch.get_num_threads,
        torch.set_num_threads,
    ),
    "how tensors are printed": (
        lambda: torch.set_printoptions(precision=7),
        lambda: PRINT_OPTS.precision,
        lambda then: torch.set_printoptions(precision=then),
    ),
    "how often is warned": (
        lambda: torch.set_warn_always(True),
        torch.is_warn_always_enabled,
        torch.set_warn_always,
    ),
    "whether gradients are checked": (
        lambda: torch.autograd.set_detect_anomaly(True),
        torch.is_anomaly_enabled,
        lambda then: torch.autograd.set_detect_anomaly(then),
    ),
    "the fast path of attention": (
        lambda: torch.backends.mha.set_fastpath_enabled(False),
        torch.backends.mha.get_fastpath_enabled,
        torch.backends.mha.set_fastpath_enabled,
    ),
    "autocast's dtype": (
        lambda: torch.set_autocast_dtype("cpu", torch.float16),
        lambda: torch.get_autocast_dtype("cpu"),
        lambda then: torch.set_autocast_dtype("cpu", then),
    ),
    "how deep calls may be": (
        lambda: sys.setrecursionlimit(sys.getrecursionlimit() + 1),
        sys.getrecursionlimit,
        sys.setrecursionlimit,
    ),
    "how often threads take turns": (
        lambda: sys.setswitchinterval(0.25),
        sys.getswitchinterval,
        sys.setswitchinterval,
    ),
    "what is done at a signal": (
        lambda: signal.signal(signal.SIGINT, _handler),
        lambda: signal.getsignal(signal.SIGINT),
        lambda then: signal.signal(signal.SIGINT, then),
    ),
    "what NumPy says of errors": (
        lambda: np.seterr(over="ignore"),
        lambda: np.geterr()["over"],
        lambda then: np.seterr(over=then),
    ),
}


@pytest.fixture
def put_back(name: str) -> Iterator[Callable[[], Any]]:
    _, now, back = SETTINGS[name]
    then = now()
    yield lambda: back(then)
    back(then)


@pytest.mark.parametrize("name", SETTINGS)
def test_each_call_sets_it(name: str, put_back: Callable[[], Any]) -> None:
    sets, now, _ = SETTINGS[name]

    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        sets()
        return net.lin(x)  # type: ignore[no-any-return]

    net = Forward(forward, lin=nn.Linear(4, 4)).requires_grad_(False)
    then = now()
    compile(net, CompileConfig(allow_cpu=True))
    with torch.no_grad():
        for _ in range(4):
            net(torch.ones(2, 4))
            assert now() != then
            put_back()


def _sets_the_flag(x: torch.Tensor) -> None:
    x.requires_grad = True


def _by_a_method(x: torch.Tensor) -> None:
    x.requires_grad_()


@pytest.mark.parametrize("sets", [_sets_the_flag, _by_a_method])
@pytest.mark.parametrize("kept", [False, True])
def test_each_call_has_the_callers_tensor_want_gradients(sets: Callable[[torch.Tensor], None], kept: bool) -> None:
    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        sets(net.kept[0] if kept else x)
        return (net.lin(x) + net.kept[0]).detach()  # type: ignore[no-any-return]

    net: Any = Forward(forward, lin=nn.Linear(4, 4)).requires_grad_(False)
    net.kept = [torch.ones(4)]
    compile(net, CompileConfig(allow_cpu=True))
    with torch.no_grad():
        for _ in range(4):
            x = torch.ones(2, 4)
            net(x)
            assert (net.kept[0] if kept else x).requires_grad
            net.kept[0].requires_grad_(False)


def test_what_a_function_with_a_cache_leaves_it_leaves_once() -> None:
    log: list[int] = []

    @functools.lru_cache
    def factor(number: int) -> float:
        log.append(number)
        return float(number)

    net: Any = Forward(lambda net, x: net.lin(x) * factor(net.number), lin=nn.Linear(4, 4)).requires_grad_(False)
    net.number = 1
    handle = compile(net, CompileConfig(allow_cpu=True))
    with torch.no_grad():
        for step in range(8):
            net.number = 1 + step // 4
            torch.testing.assert_close(net(torch.ones(2, 4)), net.lin(torch.ones(2, 4)) * net.number)
    assert log == [1, 2] and handle.engine.report.calls["fused"] >= 3
