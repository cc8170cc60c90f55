"""Functions that a model's code finds in a place of others, and that read what is another at each call: they run live,
the rest is fused.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.capturing import pretend_graphs
from tests.live import Host

STATE = SimpleNamespace(enable=False, step=0, factor=1.5)
COUNTS: list[int] = []


def changed(tensors: Any, *args: Any, original: Any, **kwargs: Any) -> Any:
    """Of another extension: a cat that changes what it joins, in place, by the step."""
    if not STATE.enable:
        return original(tensors, *args, **kwargs)
    h, skip = tensors
    h *= _factor()
    return original([h, skip * 0.5], *args, **kwargs)


def _factor() -> float:
    return float(STATE.factor if STATE.step < 100 else 1.0)


def counting(tensors: Any, *args: Any, **kwargs: Any) -> Any:
    """Another: it notes down each call, and reads how many there were."""
    COUNTS.append(1)
    return torch.cat(tensors, *args, **kwargs) * (1 + 0.01 * len(COUNTS))


def reading(tensors: Any, *args: Any, **kwargs: Any) -> Any:
    """Another: it reads a value of the tensor's into Python."""
    return torch.cat(tensors, *args, **kwargs) * (2.0 if float(tensors[0].mean()) > 0 else 0.5)


class Joins:
    """As A1111 puts one into its UNet's file in the place of ``torch``."""

    def __init__(self) -> None:
        self.cat: Any = torch.cat


OPS = Joins()


def _within(function: Any, *args: Any) -> Any:
    """As A1111 puts its own functions around a forward."""
    return function(*args)


class Net(nn.Module):
    """Blocks whose results are joined by a function from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.up = nn.ModuleList(nn.Linear(16, 8) for _ in range(3))

    def forward(self, x: torch.Tensor, options: Any = None) -> torch.Tensor:
        return _within(Net._forward, self, x)

    def _forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for block in self.down:
            x = nn.functional.silu(block(x))
            skips.append(x)
        for block in self.up:
            x = block(OPS.cat([x, skips.pop()], dim=-1))
        return x


@pytest.fixture(params=[False, True], ids=["fused", "captured"])
def host(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """On a CPU that captures nothing, and on one that seems to. What the functions read is put back."""
    if request.param:
        pretend_graphs(monkeypatch)
    for name, value in (("enable", False), ("step", 0), ("factor", 1.5)):
        monkeypatch.setattr(STATE, name, value)
    monkeypatch.setattr(OPS, "cat", functools.partial(changed, original=torch.cat))
    COUNTS.clear()
    yield Host(Net())


def _picture(host: Host, steps: int = 8) -> None:
    for STATE.step in range(steps):
        x = torch.randn(2, 5, 8)
        torch.testing.assert_close(host(x), host.eager(x), rtol=1e-4, atol=1e-5)


def _during(host: Host, pictures: int = 1, steps: int = 8) -> dict[str, int]:
    before = dict(host.calls)
    for _ in range(pictures):
        _picture(host, steps)
    return {path: count for path, calls in host.calls.items() if (count := calls - before.get(path, 0))}


def _fast(host: Host, pictures: int = 1) -> bool:
    """Whether no call of these pictures is traced, or runs as it was."""
    return _during(host, pictures).keys() <= {"fused", "replayed"}


def test_one_that_reads_the_step(host: Host) -> None:
    """Traced anew a few times; from then on it runs live, and is right when it is changed,
    switched off and on again.
    """
    STATE.enable = True
    _during(host, 2)
    assert _fast(host, 2)
    assert any("step changed" in call for signature in host.engine.report.signatures for call in signature.live), (
        host.engine.report.signatures
    )
    for STATE.enable, STATE.factor in ((False, 1.5), (True, 1.5), (True, 2.5), (False, 2.5), (True, 0.7)):
        _during(host, 4)
        assert _fast(host), (STATE, host.engine.report.reasons)


def test_off_again_it_is_fused_with_the_rest(host: Host) -> None:
    STATE.enable = True
    _during(host, 4)
    assert host.engine.tracer.live
    STATE.enable = False
    _during(host, 8)
    assert not host.engine.tracer.live
    assert not host.engine.report.signatures[-1].live


@pytest.mark.parametrize("function", [counting, reading])
def test_one_that_no_record_can_hold(host: Host, monkeypatch: pytest.MonkeyPatch, function: Any) -> None:
    """It changes what it reads, or reads a value into Python."""
    monkeypatch.setattr(OPS, "cat", function)
    for _ in range(8):
        x, before = torch.randn(2, 5, 8), list(COUNTS)
        result = host(x)
        COUNTS[:], after = before, list(COUNTS)
        torch.testing.assert_close(result, host.eager(x), rtol=1e-4, atol=1e-5)
        assert COUNTS == after
    assert host.calls.get("fused", 0) + host.calls.get("replayed", 0) >= 4, (host.calls, host.engine.report.reasons)
    monkeypatch.setattr(OPS, "cat", torch.cat)
    _during(host, 2)
    assert _fast(host)
