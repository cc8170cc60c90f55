"""A module with what steers it in many places, and a guard of a call of it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from sfast_core.capture import Guard, Trace
from tests.tracing import guarded


class Processor:
    """What diffusers' attention layers keep in an attribute."""

    def __init__(self, scale: float = 1.0) -> None:
        self.scale, self.scales, self.calls, self.seen = scale, [1.0], 0, torch.zeros(1)
        self.inner: Any = torch.neg
        self.later: Any = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * self.scale * getattr(self, "scales", ())[0] + (
            self.seen if self.later is None else self.later
        )


class LoraLinear(nn.Linear):
    """A host's own Linear that may be given a child later."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        return y + self.lora(x) if "lora" in self._modules else y


class ScaledLinear(nn.Linear):
    """A node's own Linear, which computes with a number."""

    scale = 1.0
    steps = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.scale


class Base(nn.Module):
    def _forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Block(Base):
    factor = 1.0
    _uses = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._forward(x) * self.factor

    @staticmethod
    def helper(x: torch.Tensor) -> torch.Tensor:
        return x


class Plain(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._forward(x) if self.bank is None else self.bank * x


class OtherBlock(Block):
    pass


class Attention(nn.Module):
    """Computes by what is kept in it."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.later = 2, None
        self.settings = SimpleNamespace(heads=2, other=1)
        self.processor, self.scales = Processor(), {"lora": [1.0, 2.0], "other": 1}
        self.table = torch.ones(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.processor(x) * self.heads * self.settings.heads
        for scale in self.scales["lora"]:
            y = y * scale
        return y * self.table.sum() if self.later is None else y * self.later


def closing_over(processor: Processor) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: processor(x)


def knowing() -> Callable[[torch.Tensor], torch.Tensor]:
    """A function that knows a number of its own, lists, and another function that knows one."""
    number, scales, kept = 1, [1.0], {"last": [torch.ones(1)]}
    inner = (lambda factor: lambda x: x * factor[0])([2.0])

    def forward(x: torch.Tensor) -> torch.Tensor:
        return inner(x) * scales[0] * number * kept["last"][-1]

    return forward


def known(function: Any, name: str) -> Any:
    """The cell of what a function knows by that name."""
    return function.__closure__[function.__code__.co_freevars.index(name)]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mode, self.steps = "slow", 0
        self.attention = nn.ModuleList([Attention(), Attention()])
        self.skip = nn.Sequential(LoraLinear(4, 4), nn.Dropout())
        self.norm, self.group = nn.LayerNorm(4), nn.GroupNorm(2, 4)
        self.conv = nn.Conv2d(1, 1, 3, padding=1)
        self.block, self.plain, self.scaled = Block(), Plain(), ScaledLinear(4, 4, bias=False)
        self.bound, self.closed = nn.Identity(), nn.Identity()
        self.bound.forward, self.closed.forward = Processor(3.0).__call__, closing_over(Processor(3.0))
        self.plain.register_buffer("bank", None)
        self.block._forward = knowing()
        self.spare = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for attention in self.attention:
            x = attention(x)
        x = self.scaled(self.group(self.norm(self.skip(x))))
        x = self.conv(x[None, None])[0, 0]
        x = self.closed(self.bound(self.plain(self.block(x))))
        return self.embed(x) if self.mode == "slow" else x

    def embed(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


X = torch.linspace(-1.0, 1.0, 16).reshape(4, 4)


def model() -> Any:
    return Model().eval().requires_grad_(False)


def guard_of(net: nn.Module, *inputs: torch.Tensor) -> Guard:
    _, found, guard = guarded(net, *(inputs or (X,)))
    assert isinstance(found, Trace), found.reason
    return guard


def put(path: str, name: str, value: Any) -> Callable[[Any], Any]:
    """Sets an attribute of a module; to what ``value`` makes, if it is a function."""
    return lambda net: setattr(net.get_submodule(path), name, value() if callable(value) else value)
