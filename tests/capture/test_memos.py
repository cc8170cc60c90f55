"""Tables of libraries that are filled at their first use."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch
from torch import nn

from sfast_core import CompileConfig, compile
from tests.models import Forward

_EINOPS = """
met = {}


def get_backend(tensor):
    for known in met:
        if isinstance(tensor, known):
            return met[known]
    met[type(tensor)] = "torch"
    return "torch"
"""


def test_the_first_call_that_einops_is_used_in_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """It notes the kinds of tensors that it has met: a new server's first call ran as it was, and said that an
    extension may be the cause.
    """
    einops = ModuleType("einops._backends")
    exec(_EINOPS, vars(einops))
    monkeypatch.setitem(sys.modules, "einops._backends", einops)
    get_backend = einops.get_backend
    net = Forward(
        lambda net, x: net.linear(x).relu() if get_backend(x) == "torch" else x, linear=nn.Linear(8, 8)
    ).requires_grad_(False)
    handle, x = compile(net, CompileConfig(allow_cpu=True)), torch.randn(2, 8)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(handle(x), net.linear(x).relu())
    assert handle.engine.report.calls == {"traced": 1, "fused": 1}, handle.report().text()


def test_another_version_of_einops_is_let_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "einops._backends", ModuleType("einops._backends"))
    handle = compile(
        Forward(lambda net, x: net.linear(x).relu(), linear=nn.Linear(8, 8)), CompileConfig(allow_cpu=True)
    )
    with torch.no_grad():
        handle(torch.randn(2, 8))
    assert handle.engine.report.calls == {"traced": 1}
