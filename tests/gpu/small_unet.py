"""A small UNet on a GPU, and calls of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

DEVICE = torch.device("cuda", 0)


def unet(dtype: torch.dtype = torch.float16) -> Any:
    """A small UNet of the SDXL kind: two levels, cross-attention, GEGLU, head size 64."""
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(0)
    return (
        diffusers.UNet2DConditionModel(
            sample_size=32,
            block_out_channels=(64, 128),
            layers_per_block=1,
            cross_attention_dim=128,
            attention_head_dim=(1, 2),
            transformer_layers_per_block=(1, 2),
            down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
            use_linear_projection=True,
        )
        .eval()
        .requires_grad_(False)
        .to(DEVICE, dtype)
    )


def inputs(
    height: int = 32, width: int = 32, batch: int = 2, tokens: int = 77, dtype: torch.dtype = torch.float16
) -> tuple[Any, ...]:
    """New random inputs each time."""
    return (
        torch.randn(batch, 4, height, width, device=DEVICE, dtype=dtype),
        torch.tensor(float(torch.randint(1000, (1,))), device=DEVICE),
        torch.randn(batch, tokens, 128, device=DEVICE, dtype=dtype),
    )


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Relative L2."""
    return float((a.float() - b.float()).norm() / b.float().norm())
