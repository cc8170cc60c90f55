"""Small modules for the core's tests: a forward given as a function, the blocks that a UNet is made of, and tiny
diffusers models.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn


class Forward(nn.Module):
    """A module whose forward is ``function(module, *args, **kwargs)`` and whose layers are given by name; in eval
    mode.
    """

    def __init__(self, function: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        self._function = function
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.eval()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(self, *args, **kwargs)


class Attention(nn.Module):
    """Multi-head attention of x [B, L, C] to itself, or to a context [B, S, K]."""

    def __init__(self, channels: int, context: int | None = None, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(channels, channels, bias=False)
        self.to_k = nn.Linear(context or channels, channels, bias=False)
        self.to_v = nn.Linear(context or channels, channels, bias=False)
        self.to_out = nn.Linear(channels, channels)

    def forward(self, x: torch.Tensor, context: torch.Tensor | None = None) -> torch.Tensor:
        context = x if context is None else context
        q, k, v = (
            y.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for y in (self.to_q(x), self.to_k(context), self.to_v(context))
        )
        return self.to_out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class TransformerBlock(nn.Module):
    """Self-attention, cross-attention and a GEGLU feed-forward layer, each behind a LayerNorm and added to x."""

    def __init__(self, channels: int, context: int) -> None:
        super().__init__()
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(channels) for _ in range(3))
        self.attn1, self.attn2 = Attention(channels), Attention(channels, context)
        self.gate, self.out = nn.Linear(channels, 4 * channels), nn.Linear(2 * channels, channels)

    def forward(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        x = self.attn1(self.norm1(x)) + x
        x = self.attn2(self.norm2(x), context) + x
        value, gate = self.gate(self.norm3(x)).chunk(2, dim=-1)
        return self.out(value * F.gelu(gate)) + x


class ResBlock(nn.Module):
    """GroupNorm, SiLU and convolution twice, with the timestep embedding in between."""

    def __init__(self, channels: int, out: int, embedding: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(4, channels), nn.GroupNorm(4, out)
        self.conv1, self.conv2 = nn.Conv2d(channels, out, 3, padding=1), nn.Conv2d(out, out, 3, padding=1)
        self.emb = nn.Linear(embedding, out)
        self.skip = nn.Conv2d(channels, out, 1) if out != channels else nn.Identity()

    def forward(self, x: torch.Tensor, emb: torch.Tensor) -> torch.Tensor:
        h = self.conv1(F.silu(self.norm1(x))) + self.emb(F.silu(emb))[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class UNet(nn.Module):
    """A UNet of one level: (x [B, 4, H, W], t [B], context [B, S, 12]) -> [B, 4, H, W]."""

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 32))
        self.conv_in = nn.Conv2d(4, channels, 3, padding=1)
        self.res1, self.res2 = ResBlock(channels, 2 * channels, 32), ResBlock(2 * channels + channels, channels, 32)
        self.down = nn.Conv2d(2 * channels, 2 * channels, 3, stride=2, padding=1)
        self.blocks = nn.ModuleList([TransformerBlock(2 * channels, 12) for _ in range(2)])
        self.norm_out, self.conv_out = nn.GroupNorm(4, channels), nn.Conv2d(channels, 4, 3, padding=1)
        self.eval()

    def forward(self, x: torch.Tensor, t: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        angles = t[:, None].float() * torch.exp(-torch.arange(4, device=t.device) / 4)
        emb = self.time(torch.cat([angles.cos(), angles.sin()], dim=-1).to(x.dtype))
        skip = self.conv_in(x)
        h = self.down(self.res1(skip, emb))
        b, c, height, width = h.shape
        tokens = h.permute(0, 2, 3, 1).reshape(b, height * width, c)
        for block in self.blocks:
            tokens = block(tokens, context)
        h = F.interpolate(
            tokens.reshape(b, height, width, c).permute(0, 3, 1, 2).contiguous(), scale_factor=2.0, mode="nearest"
        )
        h = self.res2(torch.cat([h, skip], dim=1), emb)
        return self.conv_out(F.silu(self.norm_out(h)))

    @staticmethod
    def inputs(
        batch: int = 2, size: int = 8, length: int = 5, dtype: torch.dtype = torch.float32
    ) -> tuple[torch.Tensor, ...]:
        """New random arguments."""
        return (
            torch.randn(batch, 4, size, size, dtype=dtype),
            torch.rand(batch) * 999,
            torch.randn(batch, length, 12, dtype=dtype),
        )


def diffusers_unet(sdxl: bool = False) -> nn.Module:
    """A diffusers UNet2DConditionModel of 0.1 to 1 million parameters, as SD1.5 or SDXL is built. Where there is no
    diffusers the test is skipped.
    """
    diffusers = pytest.importorskip("diffusers")

    more = (
        {"addition_embed_type": "text_time", "addition_time_embed_dim": 8, "projection_class_embeddings_input_dim": 80}
        if sdxl
        else {}
    )
    return diffusers.UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(16, 32),
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=12,
        attention_head_dim=(2, 4) if sdxl else 2,
        norm_num_groups=4,
        use_linear_projection=sdxl,
        transformer_layers_per_block=(1, 2) if sdxl else 1,
        **more,
    ).eval()
