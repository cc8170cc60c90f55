"""Small transformers, built as those of images and videos are: two streams that are joined (Flux), a prompt beside (Wan), a prompt in front (Z-Image)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, HEADS = 16, 2


def heads(x: torch.Tensor) -> torch.Tensor:
    """[B, L, C] as [B, H, L, D]."""
    return x.view(*x.shape[:2], HEADS, -1).transpose(1, 2)


def joined_heads(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2).flatten(2)


def table(length: int, device: torch.device, size: int = WIDTH // HEADS) -> torch.Tensor:
    """Rotations [1, 1, L, D / 2, 2, 2] by angles that grow with the place."""
    places, speeds = (torch.arange(count, dtype=torch.float32, device=device) for count in (length, size // 2))
    angles = places[:, None] / 10.0**speeds
    rotation = torch.stack([angles.cos(), -angles.sin(), angles.sin(), angles.cos()], -1)
    return rotation.reshape(1, 1, length, size // 2, 2, 2)


def rotated(x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    pairs = x.float().reshape(*x.shape[:-1], -1, 1, 2)
    return (rotation[..., 0] * pairs[..., 0] + rotation[..., 1] * pairs[..., 1]).reshape(x.shape).type_as(x)


class Stream(nn.Module):
    """What a block has for one stream of tokens: modulated norms, queries, keys and values, a feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.modulation = nn.Linear(WIDTH, 6 * WIDTH)
        self.norm1, self.norm2 = (nn.LayerNorm(WIDTH, elementwise_affine=False) for _ in range(2))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.query_norm, self.key_norm = nn.RMSNorm(WIDTH // HEADS), nn.RMSNorm(WIDTH // HEADS)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def before(self, x: torch.Tensor, step: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        self.parts = self.modulation(F.silu(step))[:, None].chunk(6, -1)
        shift, scale = self.parts[:2]
        q, k, v = self.qkv(self.norm1(x) * (1 + scale) + shift).chunk(3, -1)
        return self.query_norm(heads(q)), self.key_norm(heads(k)), heads(v)

    def behind(self, x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        gate, shift, scale, last = self.parts[2:]
        del self.parts
        x = x + gate * self.out(seen)
        return x + last * self.down(F.gelu(self.up(self.norm2(x) * (1 + scale) + shift), approximate="tanh"))


class FluxLike(nn.Module):
    """Two blocks of two streams, whose tokens see one another; then two of both in a row, with one layer in front of attention and feed-forward."""

    def __init__(self) -> None:
        super().__init__()
        self.image_in, self.text_in, self.step_in = nn.Linear(16, WIDTH), nn.Linear(12, WIDTH), nn.Linear(1, WIDTH)
        self.blocks = nn.ModuleList(nn.ModuleList([Stream(), Stream()]) for _ in range(2))
        self.first = nn.ModuleList(nn.Linear(WIDTH, 7 * WIDTH) for _ in range(2))
        self.second = nn.ModuleList(nn.Linear(5 * WIDTH, WIDTH) for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH, elementwise_affine=False)
        self.last = nn.Linear(WIDTH, 16)

    def forward(self, image: torch.Tensor, step: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        b, c, h, w = image.shape
        x = image.view(b, c, h // 2, 2, w // 2, 2).permute(0, 2, 4, 1, 3, 5).reshape(b, h * w // 4, 4 * c)
        x, t, s = self.image_in(x), self.text_in(text), self.step_in(step[:, None])
        rotation = table(t.shape[1] + x.shape[1], x.device)
        for image_side, text_side in self.blocks:
            (q1, k1, v1), (q, k, v) = text_side.before(t, s), image_side.before(x, s)
            q, k, v = (torch.cat(pair, 2) for pair in ((q1, q), (k1, k), (v1, v)))
            seen = joined_heads(F.scaled_dot_product_attention(rotated(q, rotation), rotated(k, rotation), v))
            t, x = text_side.behind(t, seen[:, : t.shape[1]]), image_side.behind(x, seen[:, t.shape[1] :])
        y = torch.cat([t, x], 1)
        for first, second in zip(self.first, self.second, strict=True):
            qkv, up = first(self.norm(y) * (1 + s[:, None])).split([3 * WIDTH, 4 * WIDTH], -1)
            q, k, v = (heads(each) for each in qkv.chunk(3, -1))
            seen = F.scaled_dot_product_attention(rotated(q, rotation), rotated(k, rotation), v)
            y = y + second(torch.cat([joined_heads(seen), F.gelu(up)], -1))
        out = self.last(self.norm(y[:, t.shape[1] :]))
        return out.view(b, h // 2, w // 2, c, 2, 2).permute(0, 3, 1, 4, 2, 5).reshape(b, c, h, w)

    @staticmethod
    def inputs(batch: int = 1, side: int = 12, words: int = 8) -> tuple[torch.Tensor, ...]:
        return torch.randn(batch, 4, side, side), torch.rand(batch), torch.randn(batch, words, 12)


class WanLike(nn.Module):
    """Blocks of attention to the video, attention to the prompt, and a feed-forward layer; patches by a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.step_in = nn.Conv3d(4, WIDTH, (1, 2, 2), (1, 2, 2)), nn.Linear(1, WIDTH)
        self.text_in = nn.Linear(12, WIDTH)
        self.blocks = nn.ModuleList(Stream() for _ in range(2))
        self.cross = nn.ModuleList(nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4)) for _ in range(2))
        self.last = nn.Linear(WIDTH, 16)

    def forward(self, video: torch.Tensor, step: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        x = self.patches(video)
        b, _, frames, h, w = x.shape
        x = x.flatten(2).transpose(1, 2)
        s, t = self.step_in(step[:, None]), F.gelu(self.text_in(text))
        rotation = table(x.shape[1], x.device)
        for block, (query, key, value, out) in zip(self.blocks, self.cross, strict=True):
            q, k, v = block.before(x, s)
            seen = joined_heads(F.scaled_dot_product_attention(rotated(q, rotation), rotated(k, rotation), v))
            prompt = F.scaled_dot_product_attention(heads(query(x)), heads(key(t)), heads(value(t)))
            x = block.behind(x + out(joined_heads(prompt)), seen)
        x = self.last(x).view(b, frames, h, w, 1, 2, 2, 4)
        return torch.einsum("bfhwpqrc->bcfphqwr", x).reshape(b, 4, frames, 2 * h, 2 * w)

    @staticmethod
    def inputs(batch: int = 1, side: int = 12, words: int = 6) -> tuple[torch.Tensor, ...]:
        return torch.randn(batch, 4, 3, side, side), torch.rand(batch), torch.randn(batch, words, 12)


class ZLike(nn.Module):
    """The prompt is refined by itself, then goes in front of the image; a mask of its words; norms behind layers too."""

    def __init__(self) -> None:
        super().__init__()
        self.image_in, self.text_in, self.step_in = nn.Linear(16, WIDTH), nn.Linear(12, WIDTH), nn.Linear(1, WIDTH)
        self.refiner, self.blocks = Stream(), nn.ModuleList(Stream() for _ in range(2))
        self.padding = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.behind = nn.RMSNorm(WIDTH)
        self.last = nn.Linear(WIDTH, 16)

    def forward(self, image: torch.Tensor, step: torch.Tensor, text: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        b, c, h, w = image.shape
        x = image.view(b, c, h // 2, 2, w // 2, 2).permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
        x, t, s = self.image_in(x), self.text_in(text), self.step_in(step[:, None])
        t = torch.cat([t, self.padding.expand(b, 3, -1)], 1)
        q, k, v = self.refiner.before(t, s)
        t = self.refiner.behind(t, joined_heads(F.scaled_dot_product_attention(q, k, v, mask[:, None, None])))
        y = torch.cat([t, x], 1)
        rotation = table(y.shape[1], x.device)
        for block in self.blocks:
            q, k, v = block.before(y, s)
            seen = joined_heads(F.scaled_dot_product_attention(rotated(q, rotation), rotated(k, rotation), v))
            y = self.behind(block.behind(y, seen)).tanh() + y
        out = self.last(y)[:, t.shape[1] :]
        return -out.view(b, h // 2, w // 2, 2, 2, c).permute(0, 5, 1, 3, 2, 4).flatten(4, 5).flatten(2, 3)

    @staticmethod
    def inputs(batch: int = 1, side: int = 12, words: int = 5) -> tuple[torch.Tensor, ...]:
        mask = torch.arange(words + 3) < words + 2
        return (
            torch.randn(batch, 4, side, side),
            torch.rand(batch),
            torch.randn(batch, words, 12),
            mask.expand(batch, -1),
        )


ALL = (FluxLike, WanLike, ZLike)
