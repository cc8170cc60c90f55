"""Packs that note each call's options somewhere, for functions of theirs: as soon as they are installed they put code
around a model's blocks that does so (layerdiffuse, Easy-Use), and the model stays fast.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from tests.live import Block, Host, path

OPTIONS: Any = None


class Shares:
    """A pack's class: the options of the call that is at work now."""

    options: Any = {}


class Notes(nn.Module):
    """Passes its options on as they are; each block is told of by the pack's code.

    Args:
        note: what that does with the options.
    """

    def __init__(self, note: Callable[[Any], None]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.note = note

    def forward(self, x: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
        for index, block in enumerate(self.blocks):
            options["block"] = index
            self.note(options)
            x = block(x, options)
            for function in options.get("between", []):
                x = function(x, options)
        return x


def on_a_class(options: Any) -> None:
    Shares.options = options


def as_a_global(options: Any) -> None:
    global OPTIONS
    OPTIONS = options


def on_an_object(options: Any, kept: Shares) -> None:
    kept.now = options  # type: ignore[attr-defined]


KEPT = Shares()
PLACES: dict[str, tuple[Callable[[Any], None], Callable[[], Any]]] = {
    "a class": (on_a_class, lambda: Shares.options),
    "a global": (as_a_global, lambda: OPTIONS),
    "an object": (functools.partial(on_an_object, kept=KEPT), lambda: KEPT.now),  # type: ignore[attr-defined]
}


@pytest.fixture(autouse=True)
def as_installed() -> Iterator[None]:
    """As it is when the pack has been loaded."""
    global OPTIONS
    Shares.options, OPTIONS = {}, None
    KEPT.__dict__.clear()
    yield


@pytest.mark.parametrize("place", PLACES)
def test_each_call_leaves_its_own(place: str) -> None:
    """The caller's own options and not what stood for them in the recording, also in the recorded call."""
    note, there = PLACES[place]
    host = Host(Notes(note))
    for step in range(5):
        x, sigma = torch.randn(2, 5, 8), torch.full((), float(step))
        result = host(x, sigma=sigma, step=step)
        assert dict(there()) == {"sigma": sigma, "step": step} and there()["sigma"] is sigma, place
        torch.testing.assert_close(result, host.eager(x, sigma=sigma, step=step))
    assert host.calls == {"traced": 1, path(host): 4}, host.engine.report.reasons


def test_beside_code_that_runs_live() -> None:
    """It doesn't look for them there."""
    host = Host(Notes(on_a_class))

    def function(x: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
        return x * round(1.0 + x.mean().item())

    host.check(lambda: {"between": [function]})
    assert host.calls["fused"] >= 2 and Shares.options["between"] == [function], host.engine.report.reasons


def test_live_code_that_looks_for_them_there() -> None:
    """It would find those of the call before: the model runs as it was."""

    def function(x: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
        return x * round(1.0 + x.mean().item()) * (1 + Shares.options.get("block", 7))

    host = Host(Notes(on_a_class))
    host.check(lambda: {"between": [function]}, calls=5)
    assert "fused" not in host.calls and host.engine.report.reasons


class AsksBefore(Notes):
    """Its own code looks for them there before they are put there: it finds the last call's."""

    def forward(self, x: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
        before = Shares.options
        x = super().forward(x, options)
        return x * (2.0 if "turn" in before else 3.0)


class Below(Shares):
    """Has what the class above has."""


class AsksBehind(Notes):
    """It looks for them behind, by another class: it finds this call's."""

    def forward(self, x: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
        x = super().forward(x, options)
        return x * (2.0 if "turn" in Below().options else 3.0)


@pytest.mark.parametrize("kind", [AsksBefore, AsksBehind])
def test_the_models_own_code_that_looks_for_them_there(kind: type[Notes]) -> None:
    host = Host(kind(on_a_class))
    for step in range(6):
        x, sigma = torch.randn(2, 5, 8), torch.full((), float(step))
        options = {"sigma": sigma, "turn": 1} if step % 3 else {"sigma": sigma}
        before = Shares.options
        result = host(x, **options)
        Shares.options = before
        torch.testing.assert_close(result, host.eager(x, **options))


class Sets(nn.Module):
    """Sets a class's attribute to what it is."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, x: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
        Shares.options = "theirs"
        return self.block(x, options)


def test_a_class_that_is_set_to_what_it_was() -> None:
    """Until somebody else sets it meanwhile."""
    host = Host(Sets())
    Shares.options = "theirs"
    host(x := torch.randn(2, 5, 8)), host(x)
    Shares.options = "others'"
    host(x)
    assert Shares.options == "theirs" and host.calls["fused"] >= 1
