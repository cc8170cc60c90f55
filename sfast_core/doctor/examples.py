"""A typical call of each op, as UNets and text encoders make it, small enough to run in a moment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ..ops.packs import INNERMOST


def examples(device: torch.device) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """``(op, arguments)`` in float16, with the same random values each time.

    An op may come more than once: some impls are for other shapes.
    """
    dtype, generator = torch.float16, torch.Generator().manual_seed(0)

    def normal(*shape: int, scale: float = 1.0) -> torch.Tensor:
        values = (torch.randn(shape, generator=generator) * scale).to(device, dtype)
        return values.contiguous(memory_format=INNERMOST[len(shape)]) if len(shape) in INNERMOST else values

    def heads(tokens: int, size: int = 64) -> torch.Tensor:
        return normal(2, tokens, 10 * size).view(2, tokens, 10, size).transpose(1, 2)

    image, tokens, embedding = normal(2, 320, 32, 32), normal(2, 256, 640), normal(2, 640)
    yield "group_norm_act", (image, 32, normal(320), normal(320), 1e-5, "silu")
    yield "group_moments", (image, 32)
    yield "group_norm_affine", (image, 32, normal(320), normal(320), 1e-6)
    yield "add_layer_norm", (tokens, normal(2, 256, 640), normal(640), normal(640), 1e-5)
    row = normal(2, 1, 640)
    yield "ada_layer_norm", (tokens, row, row, 1e-6, normal(2, 256, 640), row)
    yield "ada_rms_norm", (tokens, 1e-6, normal(640), row, None, normal(2, 256, 640), row, normal(640))
    yield "gated_sum", (tokens, row, normal(2, 256, 640))
    turned = torch.randn(1, 256, 32, 2, 2, generator=generator).to(device)
    yield "norm_rope", (heads(256).transpose(1, 2), normal(64), turned, 1e-6)
    for rows in (tokens, embedding):
        yield "linear", (rows, normal(640, 640, scale=0.04), normal(640))
        yield "linear", (rows, normal(640, 640, scale=0.04), normal(640), "none", False, normal(*rows.shape))
    numbers = torch.randint(-127, 128, (640, 640), generator=generator).to(device, torch.int8)
    scales = torch.full((640, 1), 3e-4, device=device)
    yield (
        "dequantise_blocks",
        (torch.full((640, 144), 33, dtype=torch.uint8, device=device), "Q4_K", (640, 256), dtype, torch.float16),
    )
    yield "add_low_rank", (normal(640, 640), normal(640, 32), normal(32, 640), torch.full((32,), 0.1, device=device))
    yield "quantise", (tokens, torch.int8, None, 64)
    yield "norm_quantise", (tokens, "layer", 1e-6, torch.int8, None, 64, None, None, row, row, normal(2, 256, 640), row)
    yield "norm_quantise", (tokens, "rms", 1e-6, torch.int8, None, 0, normal(640), None, row)
    yield (
        "scaled_linear",
        (numbers.view(2, 320, 640), numbers, scales, normal(640), torch.full((2, 320, 1), 0.02, device=device), dtype),
    )
    halves = numbers.chunk(2), scales.chunk(2)
    quantised = numbers.view(2, 320, 640), halves[0][0], halves[1][0], halves[0][1], halves[1][1], None, None
    yield "scaled_glu", (*quantised, torch.full((2, 320, 1), 0.02, device=device), dtype, "silu")
    yield from _float8(tokens, numbers, torch.full((), 0.02, device=device))
    yield "linear", (tokens, normal(5120, 640, scale=0.04), normal(5120), "gelu", True)
    chosen = torch.randint(0, 4, (256, 2), generator=generator).to(device)
    layers = normal(4 * 1280, 640, scale=0.04), normal(4 * 1280), normal(4 * 640, 1280, scale=0.03), normal(4 * 640)
    yield "routed_experts", (tokens[0], chosen, normal(256, 2), *layers, 4)
    rows, one = numbers[:256], torch.full((256, 1), 0.02, device=device)
    quantised_layers = numbers, scales, None, numbers.view(1280, 320), scales.repeat(2, 1), None
    yield "routed_scaled_experts", (rows, chosen % 2, normal(256, 2), *quantised_layers, 2, one, dtype)
    for act in ("gelu_tanh", "quick_gelu"):
        yield "linear", (normal(2, 77, 768), normal(3072, 768, scale=0.04), normal(3072), act)
    yield "linear", (embedding, normal(1280, 640, scale=0.04), normal(1280), "silu")
    for channels in (320, 4):
        yield "conv2d_act", (image, normal(channels, 320, 3, 3, scale=0.02), normal(channels), 1, 1)
    begun = normal(2, 128, 32, 32), normal(320, 192, 1, 1, scale=0.07), normal(320), normal(2, 64, 32, 32)
    yield "conv2d_shortcut", (image, normal(320, 320, 3, 3, scale=0.02), normal(320), 1, *begun)
    yield "upsample_conv2d", (normal(2, 320, 16, 16), normal(320, 320, 3, 3, scale=0.02), normal(320))
    video = normal(1, 192, 4, 32, 32)
    yield (
        "norm_pad_video",
        (video, 1e-24, normal(192), None, None, "silu", 1, 0, "replicate", normal(1, 192, 2, 32, 32)),
    )
    yield "conv2d_act", (video, normal(192, 192, 3, 3, 3, scale=0.02), normal(192), 1, (0, 1, 1))
    yield "attention", (heads(256), heads(256), heads(256))
    yield "attention", (heads(256, 40), heads(256, 40), heads(256, 40))
    yield "attention", (heads(256), heads(77), heads(77))
    yield "attention_of_halves", (heads(256), heads(256), heads(256))
    yield (
        "sinusoids",
        (torch.tensor([[999], [1]], device=device), torch.logspace(0, -4, 160, device=device), False, dtype),
    )
    yield "attention", (normal(1, 256, 512)[:, None], normal(1, 256, 512)[:, None], normal(1, 256, 512)[:, None])


def _float8(tokens: torch.Tensor, numbers: torch.Tensor, scale: torch.Tensor) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Calls with a weight of e4m3: of an input that is quantised, as two dtypes, and of one that isn't."""
    kind = torch.float8_e4m3fn
    yield "quantise", (tokens, kind, scale)
    yield "norm_quantise", (tokens, "layer", 1e-6, kind, scale)
    small, weight = tokens.to(kind), (numbers / 32).to(kind)
    for dtype in (tokens.dtype, torch.bfloat16):
        yield "scaled_linear", (small, weight, scale, torch.zeros(640, dtype=dtype, device=tokens.device), scale, dtype)
    yield "scaled_linear", (tokens, weight, scale, None, None, tokens.dtype)
