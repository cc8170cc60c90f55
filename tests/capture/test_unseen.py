"""Kernels that no recorder sees: a known library's function is one call of the graph; of another's, what calls it runs
live.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfast_core import CompileConfig, CompiledModule, compile
from tests.taken_in import Host

Attention = Callable[..., torch.Tensor]


def kernel(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor) -> None:
    """As one of an extension's: no mode hears of it."""
    with torch._C.DisableTorchFunction():
        o.copy_(F.scaled_dot_product_attention(q, k, v))


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, smooth_k: bool = True, **more: Any) -> torch.Tensor:
    """As SageAttention's functions, which make room for their result and fill it so."""
    o = torch.empty(q.size(), dtype=q.dtype, device=q.device)
    kernel(q, k - k.mean(dim=-2, keepdim=True) if smooth_k else k, v, o)
    return (o, o.sum()) if more.get("return_lse") else o  # type: ignore[return-value]


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A package that has been imported, and whose function this file has by its name, as hosts do."""
    there = ModuleType("sageattention")
    there.sageattn = attention  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sageattention", there)
    yield there
    assert there.sageattn is attention and sageattn is attention  # type: ignore[attr-defined]


sageattn: Attention = attention


class Layer(nn.Module):
    """Attention that a file's name leads to."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.qkv, self.options = nn.Linear(8, 24), options

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        found = sageattn(q, k, v, **self.options)
        return x + (found[0] * found[1] if isinstance(found, tuple) else found)


def run(net: nn.Module, calls: int = 6, autocast: bool = False) -> CompiledModule:
    """Calls of a module, compiled, as it is without us."""
    fast, x = compile(net.eval(), CompileConfig(allow_cpu=True)), torch.randn(2, 4, 8)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        for _ in range(calls):
            torch.testing.assert_close(fast(x), type(net).forward(net, x), rtol=1e-4, atol=1e-5)
    return fast


def test_a_known_function_is_one_call_of_the_graph() -> None:
    fast = run(nn.Sequential(Layer(), nn.Linear(8, 8), Layer(smooth_k=False)), calls=4)
    (signature,) = fast.engine.report.signatures
    assert fast.engine.report.calls == {"traced": 1, "fused": 3} and not signature.live, fast.engine.report.text()


def test_it_is_also_where_a_function_of_others_closes_over_it() -> None:
    """As KJNodes' override, whose function of functions does."""
    known = attention

    def wrapped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return known(q, k, v, smooth_k=False).to(q.dtype)

    def override(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
        return wrapped(q, k, v)

    host = Host()
    calls = host.check(lambda: lambda step: {"patches_replace": {"attn": {0: override, 1: override}}}, calls=4)
    assert calls == {"traced": 1, "fused": 3} and host.last == (1, 0), host.engine.report.text()


def test_another_function_in_its_place_is_another_trace() -> None:
    net = nn.Sequential(Layer(), nn.Linear(8, 8)).eval()
    fast, x = compile(net, CompileConfig(allow_cpu=True)), torch.randn(2, 4, 8)
    with torch.inference_mode(), pytest.MonkeyPatch.context() as patched:
        fast(x)
        patched.setitem(globals(), "sageattn", lambda q, k, v: q + k)
        torch.testing.assert_close(fast(x), type(net).forward(net, x))
    assert fast.engine.report.calls["traced"] == 2, fast.engine.report.text()


@pytest.mark.parametrize("how", ["more results", "autocast", "another library"])
def test_what_is_not_known_so_runs_live(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no more than the layer that it is in: else the model would run as it was."""
    if how == "another library":
        monkeypatch.delitem(sys.modules, "sageattention")
    options = {"return_lse": True} if how == "more results" else {}
    fast = run(nn.Sequential(nn.Linear(8, 8), Layer(**options), nn.Linear(8, 8)), autocast=how == "autocast")
    (signature,) = fast.engine.report.signatures
    assert fast.engine.report.calls["fused"] >= 4 and len(signature.live) == 1, fast.engine.report.text()
