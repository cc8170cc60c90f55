"""Arguments besides tensors: objects that hold such go as what they hold, and lists and dicts are handed back."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from sfast_core.config import CompileConfig
from sfast_core.engine import Engine
from sfast_core.hosts.held import HeldObjects
from sfast_core.hosts.hook import HookedCall
from sfast_core.hosts.live import LiveCalls

X = torch.arange(12.0).reshape(3, 4)


class Mask:
    """As LTX Video's of its guides."""

    __slots__ = ("count", "noisy", "tracked", "unset")

    def __init__(self, count: int, scale: float) -> None:
        self.count, self.noisy, self.tracked = count, torch.full((4,), scale), torch.full((count, 4), scale)

    def of(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x[: -self.count] + self.noisy, x[-self.count :] * self.tracked])


@dataclass
class Layout:
    weight: torch.Tensor
    parts: tuple[int, ...] = (2, 1)

    def of(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x[:count] * self.weight for count in self.parts])


class Derived(Mask):
    """As Chroma's modulations, whose class derives from Flux's."""

    __slots__ = ("more",)

    def __init__(self, count: int, scale: float) -> None:
        super().__init__(count, scale)
        self.more = torch.tensor(scale)

    def of(self, x: torch.Tensor) -> torch.Tensor:
        return super().of(x) + self.more


class DerivedLayout(Layout):
    pass


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, mask: Any, other: Any = None) -> torch.Tensor:
        x = self.linear(x)
        x = mask.of(x) if isinstance(mask, (Mask, Layout)) else x * mask.tracked.sum()
        return x if other is None else x * (2 if other is mask else 3)


class Counting(Block):
    def forward(self, x: torch.Tensor, mask: Any, other: Any = None) -> torch.Tensor:
        mask.count += 1
        return self.linear(x) * mask.count


class Calls:
    """A block's, as a host's hook makes them."""

    def __init__(self, block: torch.nn.Module, seen: bool = False) -> None:
        self.seen, self.block, self.engine = seen, block, Engine("block", CompileConfig(allow_cpu=True))
        self._live = LiveCalls(self.engine, seen)

    @torch.no_grad()
    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        call = HookedCall(self.block, self.block.forward, None, args, kwargs)

        def compute(traced: Any, steering: Any) -> Any:
            given = steering.args, steering.kwargs, call.eager, steering.around
            return self.engine.call(call.module, traced, *given, seen=self.seen)

        return self._live(call, compute)

    @property
    def counts(self) -> Counter[str]:
        return +Counter(self.engine.report.calls)


def test_an_object_goes_as_what_it_holds() -> None:
    calls = Calls(Block())
    layouts = [lambda scale, kind=kind: kind(torch.tensor(scale)) for kind in (Layout, DerivedLayout)]
    for make in (lambda scale: Mask(1, scale), lambda scale: Derived(1, scale), *layouts):
        for scale in (1.0, 3.0, 0.5):
            torch.testing.assert_close(calls(X, mask=make(scale)), calls.block(X, make(scale)))
    assert calls.counts == {"traced": 4, "fused": 8}, calls.engine.report.reasons


def test_another_plain_value_is_another_trace() -> None:
    calls = Calls(Block())
    for count in (1, 2, 1, 2):
        torch.testing.assert_close(calls(X, Mask(count, 2.0)), calls.block(X, Mask(count, 2.0)))
    assert calls.counts == {"traced": 2, "fused": 2}


def test_one_object_twice_is_one() -> None:
    calls, one, other = Calls(Block()), Mask(1, 2.0), Mask(1, 2.0)
    for first, second in ((one, one), (one, other), (other, other), (other, one)):
        torch.testing.assert_close(calls(X, first, other=second), calls.block(X, first, second))
    assert calls.counts == {"traced": 2, "fused": 2}


def test_an_object_that_the_call_changes_is_changed_at_each() -> None:
    calls, mine, plain = Calls(Counting()), Mask(1, 2.0), Mask(1, 2.0)
    for _ in range(4):
        torch.testing.assert_close(calls(X, mine), calls.block(X, plain))
    assert mine.count == plain.count == 5 and not calls.counts["fused"]


class Answering(Mask):
    """It may answer by more than what it holds."""

    def __getattr__(self, name: str) -> Any:
        return torch.ones(4)


class AnsweringToo(Answering):
    """Its base may."""


@pytest.mark.parametrize(
    "value",
    [Answering(1, 2.0), AnsweringToo(1, 2.0), torch.nn.Linear(1, 1), object(), Mask, lambda: X, {"a": 1}, X],
)
def test_nothing_else_is_opened(value: Any) -> None:
    held = HeldObjects()
    assert held.opened(value) is value and not held


@pytest.mark.parametrize("held", [iter(()), [1], (1, X), Mask(1, 2.0)])
def test_no_object_that_holds_more(held: Any) -> None:
    mask = Mask(1, 2.0)
    mask.unset = held
    assert HeldObjects().opened(mask) is mask


class Caching(Block):
    """As the blocks of a causal Wan: the model hands each its cache, and looks at that again."""

    def forward(self, x: torch.Tensor, caches: tuple[dict[str, Any], list[int]]) -> torch.Tensor:
        cache, lengths = caches
        cache["count"] += 1
        cache.setdefault("first", self.linear(x))
        lengths.append(len(lengths))
        return self.linear(x) * cache["count"] + cache["first"]


def test_what_a_block_leaves_in_its_lists_and_dicts_is_there() -> None:
    calls = Calls(Caching(), seen=True)
    mine, plain = [({"count": 0}, [7]) for _ in range(2)]
    kept = mine[1]
    for step in range(4):
        torch.testing.assert_close(calls(X + step, mine), calls.block(X + step, plain))
    assert mine[0]["count"] == plain[0]["count"] == 4 and mine[1] is kept and kept == plain[1] == [7, 1, 2, 3, 4]
    torch.testing.assert_close(mine[0]["first"], plain[0]["first"])
    assert not calls.counts["fused"]


class Failing(Caching):
    def forward(self, x: torch.Tensor, caches: tuple[dict[str, Any], list[int]]) -> torch.Tensor:
        x = super().forward(x, caches)
        return x if x.sum().item() > 1e9 else x + 1


def test_a_call_that_cannot_be_recorded_changes_them_once() -> None:
    calls = Calls(Failing(), seen=True)
    mine, plain = [({"count": 0}, [7]) for _ in range(2)]
    for step in range(3):
        torch.testing.assert_close(calls(X + step, mine), calls.block(X + step, plain))
    assert mine[0]["count"] == 3 and mine[1] == plain[1] and not calls.counts["fused"]
