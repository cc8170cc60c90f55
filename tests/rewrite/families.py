"""A small model of each family: what the passes make of it is known (:mod:`.test_families`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from sfast_core.weights.kitchen import CODES
from tests.kitchen import kitchen
from tests.models import Attention, Forward, ResBlock, UNet

B, L, T, C, H = 2, 64, 70, 64, 2  # images, tokens of text and of the image, channels, heads
D = C // H


def heads(x: torch.Tensor) -> torch.Tensor:
    return x.unflatten(-1, (-1, D)).transpose(1, 2)


def rows(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2).flatten(2)


def turned(x: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
    pairs = x.reshape(*x.shape[:-1], -1, 1, 2)
    return (matrices[..., 0] * pairs[..., 0] + matrices[..., 1] * pairs[..., 1]).reshape(x.shape)


def modulated(x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    return torch.addcmul(shift, F.layer_norm(x, (C,), eps=1e-6), 1 + scale)


class Stream(nn.Module):
    """One stream's layers of a block that attends jointly."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(C, 3 * C), nn.Linear(C, C)
        self.up, self.down = nn.Linear(C, 4 * C), nn.Linear(4 * C, C)
        self.q, self.k, self.rows = nn.RMSNorm(D, eps=1e-6), nn.RMSNorm(D, eps=1e-6), nn.Linear(C, 6 * C)

    def begin(self, x: torch.Tensor, t: torch.Tensor) -> tuple[Any, ...]:
        rows = self.rows(t)[:, None].chunk(6, -1)
        q, k, v = map(heads, self.qkv(modulated(x, *rows[:2])).chunk(3, -1))
        return rows, self.q(q), self.k(k), v

    def end(self, x: torch.Tensor, attended: torch.Tensor, rows: Any) -> torch.Tensor:
        x = x + rows[2] * self.out(attended)
        return x + rows[5] * self.down(F.gelu(self.up(modulated(x, *rows[3:5])), approximate="tanh"))


class Transformer(nn.Module):
    """As Flux: a block of two streams, and one in which attention and the feed-forward share their projections."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(C, C), nn.SiLU(), nn.Linear(C, C))
        self.text, self.image = Stream(), Stream()
        self.both, self.back, self.rows = nn.Linear(C, 7 * C), nn.Linear(5 * C, C), nn.Linear(C, 3 * C)
        self.q, self.k, self.last = nn.RMSNorm(D, eps=1e-6), nn.RMSNorm(D, eps=1e-6), nn.Linear(C, 8)
        self.eval()

    def forward(self, x: torch.Tensor, t: torch.Tensor, text: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
        angles = t[:, None].float() * torch.exp(-torch.arange(C // 2) / 8)
        t = F.silu(self.time(torch.cat([torch.cos(angles), torch.sin(angles)], dim=-1)))
        (a, *first), (b, *second) = self.text.begin(text, t), self.image.begin(x, t)
        q, k, v = (torch.cat(pair, dim=2) for pair in zip(first, second, strict=True))
        attended = rows(F.scaled_dot_product_attention(turned(q, matrices), turned(k, matrices), v))
        text, x = self.text.end(text, attended[:, :L], a), self.image.end(x, attended[:, L:], b)
        x = torch.cat([text, x], dim=1)
        scale, shift, gate = self.rows(t)[:, None].chunk(3, -1)
        qkv, hidden = torch.split(self.both(modulated(x, scale, shift)), [3 * C, 4 * C], dim=-1)
        q, k, v = map(heads, qkv.chunk(3, -1))
        attended = rows(F.scaled_dot_product_attention(turned(self.q(q), matrices), turned(self.k(k), matrices), v))
        x = x + gate * self.back(torch.cat([attended, F.gelu(hidden, approximate="tanh")], dim=-1))
        x = torch.cat([x[:, :L], x[:, L:]], dim=1)
        return self.last(F.layer_norm(x, (C,)))

    @staticmethod
    def inputs() -> tuple[torch.Tensor, ...]:
        return torch.randn(B, T, C), torch.rand(B) * 999, torch.randn(B, L, C), torch.randn(1, 1, L + T, D // 2, 2, 2)


class Encoder(nn.Module):
    """As OpenCLIP's and CLIP's text encoders: a block of each."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.MultiheadAttention(C, H), Attention(C)
        self.norms = nn.ModuleList(nn.LayerNorm(C) for _ in range(5))
        self.ups, self.downs = (nn.ModuleList(nn.Linear(*size) for _ in range(2)) for size in ((C, 4 * C), (4 * C, C)))
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norms[0](x).transpose(0, 1)
        x = x + self.one(h, h, h, need_weights=False)[0].transpose(0, 1)
        x = x + self.downs[0](F.gelu(self.ups[0](self.norms[1](x))))
        x = x + self.two(self.norms[2](x))
        h = self.ups[1](self.norms[3](x))
        return self.norms[4](x + self.downs[1](h * torch.sigmoid(1.702 * h)))


class Decoder(nn.Module):
    """As a VAE's decoder: attention of one head written out, doubled images,
    blocks that change the number of channels.
    """

    def __init__(self) -> None:
        super().__init__()
        self.res = nn.ModuleList([ResBlock(16, 16, 8), ResBlock(16, 32, 8)])
        self.norm, self.up = nn.GroupNorm(4, 16), nn.Conv2d(16, 16, 3, padding=1)
        self.q, self.k, self.v, self.o = (nn.Conv2d(16, 16, 1) for _ in range(4))
        self.norm_out, self.out = nn.GroupNorm(4, 32), nn.Conv2d(32, 3, 3, padding=1)
        self.eval()

    def forward(self, x: torch.Tensor, emb: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.res[0](x, emb))
        q, k, v = (layer(h).flatten(2).transpose(1, 2) for layer in (self.q, self.k, self.v))
        weights = torch.softmax(torch.bmm(q, k.transpose(1, 2)) * 0.25, dim=2)
        x = (x + self.o(torch.bmm(weights, v).transpose(1, 2).reshape(h.shape))) / 1.0
        x = self.up(F.interpolate(x, scale_factor=2.0, mode="nearest"))
        h = self.norm_out(self.res[1](x, emb))
        return self.out(h * torch.sigmoid(h))


def _quantised() -> nn.Module:
    """Blocks of int8: LayerNorm and RMSNorm in front, a gate, and an activation between."""
    kernels: Any = kitchen()

    def linear(net: Any, name: str, x: torch.Tensor) -> torch.Tensor:
        return kernels.int8_linear(x, getattr(net, name), getattr(net, name + "_scale"), None, CODES[torch.bfloat16])

    def forward(
        net: Any, x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, gate: torch.Tensor
    ) -> torch.Tensor:
        h = modulated(x, scale, shift)
        x = x + gate * linear(
            net,
            "out",
            F.scaled_dot_product_attention(*(heads(linear(net, name, h)) for name in "qkv")).transpose(1, 2).flatten(2),
        )
        h = F.rms_norm(x, (C,), net.weight, 1e-6) * (1 + scale)
        return x + gate * linear(net, "down", F.silu(linear(net, "gate", h)) * linear(net, "up", h))

    net = Forward(forward)
    net.weight = nn.Parameter(torch.ones(C).bfloat16(), requires_grad=False)
    for name, n, k in (
        *((name, C, C) for name in ("q", "k", "v", "out")),
        ("gate", 2 * C, C),
        ("up", 2 * C, C),
        ("down", C, 2 * C),
    ):
        setattr(net, name, nn.Parameter(torch.randint(-127, 128, (n, k), dtype=torch.int8), requires_grad=False))
        setattr(net, name + "_scale", nn.Parameter(torch.full((n, 1), 1e-3), requires_grad=False))
    return net


def _sandwiched() -> nn.Module:
    """As Lumina 2: RMSNorms in front of each layer and behind it, scales, gates, and a SwiGLU."""

    def forward(net: Any, x: torch.Tensor, scale: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        h = net.norm1(x) * (1 + scale)
        attended = rows(F.scaled_dot_product_attention(*map(heads, net.qkv(h).chunk(3, -1))))
        x = x + gate * net.norm2(net.out(attended))
        h = net.norm1(x) * (1 + scale)
        return x + gate * net.norm2(net.down(F.silu(net.gate(h)) * net.up(h)))

    layers = {
        name: nn.Linear(n, k)
        for name, n, k in (("qkv", C, 3 * C), ("out", C, C), ("gate", C, 2 * C), ("up", C, 2 * C), ("down", 2 * C, C))
    }
    return Forward(forward, norm1=nn.RMSNorm(C, eps=1e-5), norm2=nn.RMSNorm(C, eps=1e-5), **layers)


#: name: the model, and its inputs
FAMILIES: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[torch.Tensor, ...]]]] = {
    "unet": (UNet, UNet.inputs),
    "transformer": (Transformer, Transformer.inputs),
    "text encoder": (Encoder, lambda: (torch.randn(B, 7, C),)),
    "decoder": (Decoder, lambda: (torch.randn(1, 16, 8, 8), torch.randn(1, 8))),
    "sandwiched": (_sandwiched, lambda: (torch.randn(B, T, C), torch.randn(B, 1, C), torch.randn(B, 1, C))),
    "quantised": (_quantised, lambda: tuple(torch.randn(B, size, C).bfloat16() for size in (T, 1, 1, 1))),
}
