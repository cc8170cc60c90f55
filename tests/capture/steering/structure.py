"""Forwards with what steers them, what changes that, and what changes it back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn


class Steered(NamedTuple):
    """A module, what changes it, and what takes that back (None: nothing does).

    Both are also called for the twin, so what is changed for the whole process is changed twice.
    """

    module: nn.Module
    change: Callable[[], Any]
    back: Callable[[], Any] | None = None


CASES: dict[str, Callable[[], Steered]] = {}


def case(name: str) -> Callable[[Callable[[], Steered]], Callable[[], Steered]]:
    def add(build: Callable[[], Steered]) -> Callable[[], Steered]:
        CASES[name] = build
        return build

    return add


class Root(nn.Module):
    def __init__(self, child: nn.Module) -> None:
        super().__init__()
        self.child = child

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.child(x)


def linear() -> nn.Linear:
    return nn.Linear(8, 8)


def own(forward: Callable[..., torch.Tensor], base: type = nn.Module, **attributes: Any) -> nn.Module:
    """A module of a class of its own that computes by ``forward(module, x)``."""
    made = type("Own", (base,), {"forward": forward})()
    made.linear = linear()
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def setting(module: Any, name: str, value: Any) -> Steered:
    """``module`` in a root, of which an attribute is set and set back."""
    before = getattr(module, name)
    return Steered(Root(module), lambda: setattr(module, name, value), lambda: setattr(module, name, before))


def replaced(owner: Any, name: str, by: Callable[[Any], Any], module: nn.Module) -> Steered:
    """``owner.name``, which is everybody's, replaced by what ``by`` makes of it."""
    before = getattr(owner, name)
    return Steered(Root(module), lambda: setattr(owner, name, by(before)), lambda: setattr(owner, name, before))


def thrice(function: Any) -> Any:
    return lambda *args, **kwargs: function(*args, **kwargs) * 3


def times(function: Any, factor: float, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs) * factor


class Thrice:
    def __init__(self, function: Any) -> None:
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs) * 3


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = 2.0

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight * self.factor
