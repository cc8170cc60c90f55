"""What tests of an engine's weights share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from sfast_core import CompiledModule


class Net(nn.Module):
    """Projections that are packed, a weight at two addresses, a convolution that is turned, buffers and a plain
    attribute.
    """

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))
        self.first, self.second = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        self.second.weight = self.first.weight
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.register_buffer("scale", torch.rand(8))
        self.shift = torch.rand(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.scale + self.shift
        q, k, v = (
            F.linear(x, layer.weight.to(x.dtype), None if layer.bias is None else layer.bias.to(x.dtype))
            for layer in (self.q, self.k, self.v)
        )
        x = F.scaled_dot_product_attention(q, k, v)
        x = self.second(torch.relu(self.first(x)))
        return x.sum((1, 2))[:, None, None, None] + F.conv2d(
            x.reshape(2, 2, 4, 6), self.conv.weight.to(x.dtype), self.conv.bias, padding=1
        )

    @staticmethod
    def inputs() -> torch.Tensor:
        return torch.randn(2, 6, 8)


def check(handle: CompiledModule) -> None:
    """A call gives what the module's own forward gives."""
    x = Net.inputs()
    result = handle(x)
    torch.testing.assert_close(result, type(handle.module).forward(handle.module, x), rtol=1e-4, atol=1e-4)
