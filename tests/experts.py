"""Mixtures of experts as models have them, in miniature."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Activation = Callable[[torch.Tensor], torch.Tensor]


class FeedForward(nn.Module):
    """One layer of an expert and the other."""

    def __init__(self, width: int, hidden: int, act: Activation = F.gelu) -> None:
        super().__init__()
        self.up, self.down, self.act = nn.Linear(width, hidden), nn.Linear(hidden, width), act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.act(self.up(x)))


class Gated(nn.Module):
    """With a gate, as SwiGLU is."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.w1, self.w3 = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.w2 = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Gate(nn.Module):
    """The likeliest experts of each token."""

    def __init__(self, width: int, experts: int, top_k: int) -> None:
        super().__init__()
        self.top_k, self.weight = top_k, nn.Parameter(torch.randn(experts, width))

    def forward(self, x: torch.Tensor) -> Any:
        scores, indices = F.linear(x.flatten(0, -2), self.weight).softmax(-1).topk(self.top_k)
        return indices, scores, None


class ByMask(nn.Module):
    """Each expert gets the rows that a mask chooses."""

    def __init__(self, experts: list[nn.Module], width: int, top_k: int = 2, shared: nn.Module | None = None) -> None:
        super().__init__()
        self.experts, self.gate = nn.ModuleList(experts), Gate(width, len(experts), top_k)
        if shared is not None:
            self.shared_experts = shared
        self.eval().requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        indices, scores, _ = self.gate(x)
        rows = x.flatten(0, -2).repeat_interleave(indices.shape[1], 0)
        y, chosen = torch.empty_like(rows), indices.flatten()
        for number, expert in enumerate(self.experts):
            y[chosen == number] = expert(rows[chosen == number])
        y = (y.view(*scores.shape, -1) * scores.unsqueeze(-1)).sum(1).view_as(x)
        return y + self.shared_experts(x) if "shared_experts" in self._modules else y


class BySorting(ByMask):
    """Each expert gets a span of the sorted rows, where there are any."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        indices, scores, _ = self.gate(x)
        rows, chosen = x.flatten(0, -2), indices.flatten()
        order, y, start = chosen.argsort(), torch.zeros_like(x.flatten(0, -2)), 0
        for number, end in enumerate(chosen.bincount().cumsum(0)):
            if start != end:
                tokens = order[start:end] // indices.shape[1]
                y.index_add_(0, tokens, self.experts[number](rows[tokens]) * scores.flatten()[order[start:end], None])
            start = end
        return y.view_as(x) + self.shared_experts(x) if "shared_experts" in self._modules else y.view_as(x)


class Halving(ByMask):
    """No sum by its gate."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) / 2


class Between(nn.Module):
    """One between layers that are recorded."""

    def __init__(self, mixture: nn.Module, width: int) -> None:
        super().__init__()
        self.first, self.mixture, self.last = nn.Linear(width, width), mixture, nn.Linear(width, width)
        self.eval().requires_grad_(False)

    def forward(self, x: torch.Tensor, *_: Any) -> torch.Tensor:
        return self.last(x + self.mixture(self.first(x)))
