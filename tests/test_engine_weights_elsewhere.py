"""A weight that the model also has in another place: a program reads the module's, so each of the two is to stay the
other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core import CompileConfig, compile
from tests.capturing import pretend_graphs
from tests.models import Forward


def _given(weight: torch.Tensor) -> torch.Tensor:
    return weight


def _closed_over(weight: torch.Tensor) -> Any:
    def get() -> torch.Tensor:
        return weight

    def put(another: torch.Tensor) -> None:
        nonlocal weight
        weight = another

    get.put = put  # type: ignore[attr-defined]
    return get


#: How a weight is kept, how it is found there, and how another is put there.
_PLACES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    "a list": (lambda weight: [weight], lambda net: net.kept[0], lambda net, other: net.kept.__setitem__(0, other)),
    "a dict": (
        lambda weight: {"w": weight},
        lambda net: net.kept["w"],
        lambda net, other: net.kept.__setitem__("w", other),
    ),
    "a tuple": (lambda weight: (weight,), lambda net: net.kept[0], lambda net, other: setattr(net, "kept", (other,))),
    "an object": (
        lambda weight: SimpleNamespace(w=weight),
        lambda net: net.kept.w,
        lambda net, other: setattr(net.kept, "w", other),
    ),
    "a closure": (_closed_over, lambda net: net.kept(), lambda net, other: net.kept.put(other)),
    "a partial": (
        lambda weight: functools.partial(_given, weight=weight),
        lambda net: net.kept(),
        lambda net, other: net.kept.keywords.__setitem__("weight", other),
    ),
}


def _other() -> nn.Parameter:
    return nn.Parameter(torch.randn(8, 8), requires_grad=False)


@pytest.mark.parametrize("alone", [False, True], ids=["the module's, too", "read there alone"])
@pytest.mark.parametrize("captured", [False, True], ids=["fused", "captured"])
@pytest.mark.parametrize("place", _PLACES)
def test_another_weight_at_one_of_its_places(
    place: str, captured: bool, alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep, find, put = _PLACES[place]

    def function(net: Any, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.linear(x, find(net))
        return y if alone else y + net.lin(x)

    if captured:
        pretend_graphs(monkeypatch)
    net: Any = Forward(function, lin=nn.Linear(8, 8)).requires_grad_(False)
    net.kept = keep(net.lin.weight)
    handle = compile(net, CompileConfig(allow_cpu=True))
    changes: list[Callable[[], Any]] = [
        lambda: net.lin.weight.mul_(2),
        lambda: setattr(net.lin, "weight", _other()),
        lambda: put(net, net.lin.weight),
        lambda: put(net, _other()),
    ]
    with torch.no_grad():
        for change in (lambda: None, *changes):
            change()
            for _ in range(3):
                x = torch.randn(2, 8)
                expected = nn.functional.linear(x, find(net))
                expected = expected if alone else expected + net.lin(x)
                torch.testing.assert_close(handle(x), expected, rtol=1e-4, atol=1e-4)
    assert not handle.engine.report.calls["eager"], handle.report().text()
