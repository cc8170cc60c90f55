"""What a function that runs live writes into what it shares with one that is recorded with the model: in each call it is
read as it is then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core import CompileConfig, compile
from tests.taken_in import Host

GLOBAL: dict[str, Any] = {}
Pair = tuple[Callable[[Any], None], Callable[[], Any]]


class _Object:
    value: Any = 1.0
    table: dict[str, Any]
    items: list[Any]


def _attribute() -> Pair:
    shared = _Object()
    return lambda value: setattr(shared, "value", value), lambda: shared.value


def _item() -> Pair:
    shared: dict[str, Any] = {"value": 1.0}
    return lambda value: shared.__setitem__("value", value), lambda: shared["value"]


def _item_of_a_list() -> Pair:
    shared: list[Any] = [1.0]
    return lambda value: shared.__setitem__(0, value), lambda: shared[0]


def _variable() -> Pair:
    shared: Any = 1.0

    def write(value: Any) -> None:
        nonlocal shared
        shared = value

    return write, lambda: shared


def _global() -> Pair:
    name = f"value {len(GLOBAL)}"
    GLOBAL[name] = 1.0
    return lambda value: GLOBAL.__setitem__(name, value), lambda: GLOBAL[name]


def _of_the_class() -> Pair:
    shared = type("Shared", (), {"value": 1.0})
    return lambda value: setattr(shared, "value", value), lambda: shared.value  # type: ignore[attr-defined]


SHARED = [_attribute, _item, _item_of_a_list, _variable, _global, _of_the_class]


def _as_number(value: float) -> Any:
    return value


def _as_tensor(value: float) -> Any:
    return torch.full((1,), value)


@pytest.mark.parametrize("make", SHARED)
@pytest.mark.parametrize("form", [_as_number, _as_tensor])
@pytest.mark.parametrize("blocks", [(0,), (0, 1), (1,)])
@pytest.mark.parametrize("resets", [False, True])
def test_it_is_read_as_it_is(
    make: Callable[[], Pair], form: Callable[[float], Any], blocks: tuple[int, ...], resets: bool
) -> None:
    """A number or a tensor, written at some blocks; a third function may put back what was there before.

    In the end the one that reads runs live, and calls are fast.
    """
    host = Host()

    def both() -> Callable[[int], dict[str, Any]]:
        write, read = make()

        def writes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> Any:
            if options["block"] in blocks:
                write(form(options["sigmas"][0].item()))
            return q, k, v

        def reads(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> Any:
            return q * read(), k, v

        def puts_back(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> Any:
            if options["sigmas"][0].item() > 0:
                write(1.0)
            return q, k, v

        patches = {"patches": {"attn": [writes, reads, *([puts_back] if resets else [])]}}
        return lambda step: patches

    host.check(both, 12)
    assert host.check(both, 4).get("fused", 0) >= 1, host.engine.report.text()


class _Leaves(nn.Module):
    """Keeps what it computes where others find it."""

    def __init__(self, shared: Any, how: str) -> None:
        super().__init__()
        self.out, self.shared, self.how = nn.Linear(8, 8), shared, how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.out(x)
        if self.how == "object":
            self.shared.value = y * 2
        elif self.how == "module":
            self.kept = y * 2
        elif self.how == "dict":
            self.shared.table["value"] = y * 2
        else:
            self.shared.items.append(y * 2)
        return y


class _Finds(nn.Module):
    """Runs live, since it reads a value, and looks for that."""

    def __init__(self, leaves: _Leaves) -> None:
        super().__init__()
        self.__dict__["leaves"] = leaves

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        leaves = self.leaves
        found = {
            "object": lambda: leaves.shared.value,
            "module": lambda: leaves.kept,
            "dict": lambda: leaves.shared.table["value"],
            "list": lambda: leaves.shared.items[-1],
        }[leaves.how]()
        return x * x.sum().item() + found


@pytest.mark.parametrize("how", ["object", "module", "dict", "list"])
def test_what_a_module_leaves_for_one_that_runs_live(how: str) -> None:
    """It finds this call's, not what the call before has left there."""

    def make() -> nn.Module:
        torch.manual_seed(0)
        shared = _Object()
        shared.table, shared.items = {}, []
        leaves = _Leaves(shared, how)
        return nn.Sequential(leaves, _Finds(leaves), nn.Linear(8, 8)).eval()

    mine, theirs = make(), make()
    fast = compile(mine, CompileConfig(allow_cpu=True))
    with torch.inference_mode():
        for _ in range(8):
            x = torch.randn(3, 8)
            torch.testing.assert_close(fast(x), theirs(x), rtol=1e-4, atol=1e-4)


class _Writes(nn.Module):
    """Runs live, since it reads a value, and leaves that for the model's own code."""

    def __init__(self, write: Callable[[Any], None]) -> None:
        super().__init__()
        self.__dict__["write"] = write

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.write(x[0, 0].item())
        return x


class _Decides(nn.Module):
    """Goes one of two ways by it."""

    def __init__(self, read: Callable[[], Any]) -> None:
        super().__init__()
        self.out, self.read = nn.Linear(8, 8), read

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(x) if self.read() > 3 else self.out(x) * 2


class _Net(nn.Module):
    def __init__(self, write: Callable[[Any], None], read: Callable[[], Any]) -> None:
        super().__init__()
        self.first, self.writes, self.decides, self.last = (
            nn.Linear(8, 8),
            _Writes(write),
            _Decides(read),
            nn.Linear(8, 8),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.decides(self.writes(x) + self.first(x)))


@pytest.mark.parametrize("make", SHARED)
def test_what_live_code_leaves_for_the_models_own(make: Callable[[], Pair]) -> None:
    """It is read as live code has left it in this call, not as the call before has."""

    def net() -> nn.Module:
        torch.manual_seed(0)
        return _Net(*make()).eval()

    mine, theirs = net(), net()
    fast = compile(mine, CompileConfig(allow_cpu=True))
    with torch.inference_mode():
        for number in [1.0, 1.0, 2.0, 5.0, 5.0, 6.0, 1.0, 5.0, 5.0, 1.0, 2.0, 6.0, 6.0, 6.0]:
            x = torch.randn(3, 8)
            x[0, 0] = number
            torch.testing.assert_close(fast(x), theirs(x), rtol=1e-4, atol=1e-4)
    assert fast.engine.report.calls["fused"] >= 3, fast.engine.report.text()
