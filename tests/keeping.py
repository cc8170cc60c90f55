"""A model with modules that run live, and keep what they want."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Body = Callable[[Any, torch.Tensor, Any], Any]


class Live(nn.Module):
    """Reads a value, so that it runs live, and keeps what it wants in ``store``, which all of one model have."""

    def __init__(self, store: dict[Any, Any], body: Body) -> None:
        super().__init__()
        self.store, self.body = store, body

    def forward(self, x: torch.Tensor, other: Any = None) -> Any:
        x.sum().item()
        return self.body(self.store, x, other)


class Model(nn.Module):
    """A layer, and what runs live around it: ``forward`` says how."""

    def __init__(self, forward: Callable[..., Any], **bodies: Body) -> None:
        super().__init__()
        self.store: dict[Any, Any] = {}
        self.lin = nn.Linear(8, 8)
        self.kept = [torch.ones(8), torch.full((8,), 2.0)]
        for name, body in bodies.items():
            setattr(self, name, Live(self.store, body))
        self.way = forward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.way(self, x)
        return result


def as_it_is(store: Any, x: torch.Tensor, other: Any) -> torch.Tensor:
    """Of a live module: it keeps nothing."""
    return x * 1
