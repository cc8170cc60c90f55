"""A graph that works on an image, cut into stripes, computes on each device what one computes of all."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfast_core.sharding.stripes import cut_in_stripes
from tests.sharding.devices import canonical, run


class Block(nn.Module):
    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(4, channels), nn.GroupNorm(4, out)
        self.conv1, self.conv2 = nn.Conv2d(channels, out, 3, padding=1), nn.Conv2d(out, out, 3, padding=1)
        self.shortcut = nn.Conv2d(channels, out, 1) if channels != out else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv2(F.silu(self.norm2(self.conv1(F.silu(self.norm1(x))))))
        return self.shortcut(x) + y


class Decoder(nn.Module):
    """As an autoencoder's: attention in the middle, then larger and larger."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_in, self.conv_out = nn.Conv2d(4, 16, 3, padding=1), nn.Conv2d(8, 3, 3, padding=1)
        self.mid1, self.mid2 = Block(16, 16), Block(16, 16)
        self.norm, self.norm_out = nn.GroupNorm(4, 16), nn.GroupNorm(4, 8)
        self.q, self.k, self.v, self.out = (nn.Conv2d(16, 16, 1) for _ in range(4))
        self.ups = nn.ModuleList([Block(16, 16), Block(16, 8)])
        self.larger = nn.ModuleList([nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)])

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        q, k, v = (layer(y).flatten(2).transpose(1, 2)[:, None] for layer in (self.q, self.k, self.v))
        seen = F.scaled_dot_product_attention(q, k, v)[:, 0].transpose(1, 2)
        return x + self.out(seen.reshape(x.shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.mid2(self.attention(self.mid1(self.conv_in(x))))
        for up, larger in zip(self.ups, self.larger, strict=True):
            x = larger(F.interpolate(up(x), scale_factor=2.0, mode="nearest"))
        return self.conv_out(F.silu(self.norm_out(x)))


@pytest.mark.parametrize(("height", "devices"), [(32, 2), (33, 2), (64, 4), (12, 2), (40, 3)])
def test_a_decoder_in_stripes(height: int, devices: int) -> None:
    torch.manual_seed(0)
    net = Decoder().eval()
    made = cut_in_stripes(canonical(net, torch.randn(1, 4, height, 10)), devices)
    x = torch.randn(1, 4, height, 10)
    with torch.no_grad():
        expected = net(x)
    for (result,) in run(made, [x]):
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
    print(made.unknown, len(made.gathers), made.rows)
