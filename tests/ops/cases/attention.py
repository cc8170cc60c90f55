"""Cases of ``attention``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.ops.case import Case, Data, Made, Make


def _heads(packed: torch.Tensor) -> torch.Tensor:
    """[B, L, H, D] as [B, H, L, D]."""
    return packed.transpose(1, 2)


def _cross(batch: int, heads: int, queries: int, keys: int, depth: int, spread: float = 1.0, **options: Any) -> Make:
    """Projections of two inputs, keys and values packed. ``spread``: of the scores; at 4 a few keys take all."""

    def make(dtype: torch.dtype, device: torch.device) -> Made:
        data = Data(dtype, device)
        q = data.normal(batch, queries, heads, depth, std=spread)
        k, v = data.normal(batch, keys, 2, heads, depth).unbind(2)
        return (_heads(q), _heads(k), _heads(v)), dict(options)

    return make


def _packed(batch: int, heads: int, tokens: int, depth: int, **options: Any) -> Make:
    """Self-attention on views of one packed projection."""

    def make(dtype: torch.dtype, device: torch.device) -> Made:
        q, k, v = Data(dtype, device).normal(batch, tokens, 3, heads, depth).unbind(2)
        return (_heads(q), _heads(k), _heads(v)), dict(options)

    return make


def _contiguous(batch: int, heads: int, queries: int, keys: int, depth: int) -> Make:
    """Each head in one piece."""

    def make(dtype: torch.dtype, device: torch.device) -> Made:
        data = Data(dtype, device)
        return (*(data.normal(batch, heads, length, depth) for length in (queries, keys, keys)),), {}

    return make


def _masked(shape: tuple[int, ...], boolean: bool) -> Make:
    def make(dtype: torch.dtype, device: torch.device) -> Made:
        data = Data(dtype, device)
        q, k, v = data.normal(2, 24, 3, 2, 16).unbind(2)
        mask = data.normal(*shape)
        if boolean:
            mask = mask > -0.5
            mask[..., 0] = True
        return (_heads(q), _heads(k), _heads(v), mask), {}

    return make


def _grouped(heads: int, keys_heads: int, queries: int, keys: int, depth: int, **options: Any) -> Make:
    """Each head of the keys is several queries'."""

    def make(dtype: torch.dtype, device: torch.device) -> Made:
        data = Data(dtype, device)
        k, v = data.normal(2, keys, 2, keys_heads, depth).unbind(2)
        return (_heads(data.normal(2, queries, heads, depth)), _heads(k), _heads(v)), dict(options)

    return make


def _far_apart(dtype: torch.dtype, device: torch.device) -> Made:
    """Queries of two batches with 2^31 elements between them."""
    data = Data(dtype, device)
    q = torch.empty(2**31 + 100 * 2 * 64, dtype=dtype, device=device).as_strided((2, 100, 2, 64), (2**31, 128, 64, 1))
    q.copy_(data.normal(2, 100, 2, 64))
    k, v = data.normal(2, 77, 2, 2, 64).unbind(2)
    return (_heads(q), _heads(k), _heads(v)), {}


CASES = [
    *(Case(f"77-keys-head-{depth}", _cross(2, 2, 70, 77, depth)) for depth in (8, 40, 64, 80, 96, 160)),
    *(Case(f"{keys}-keys", _cross(1, 2, 33, keys, 32)) for keys in (1, 16, 17, 64, 81, 128)),
    Case("several-blocks", _cross(1, 1, 421, 77, 64)),
    Case("several-blocks-wide", _cross(1, 2, 200, 100, 128)),
    Case("one-query", _cross(3, 2, 1, 77, 64)),
    *(
        case
        for depth in (40, 64)
        for case in (
            Case(f"head-{depth}", _packed(1, 2, 520, depth)),
            Case(f"head-{depth}-ends", _cross(2, 3, 300, 333, depth, scale=0.2)),
            Case(f"head-{depth}-peaked", _cross(1, 2, 70, 400, depth, spread=4.0)),
            Case(f"head-{depth}-contiguous", _contiguous(2, 2, 257, 129, depth)),
            # blocks of the CUDA kernel share the keys, and not evenly
            Case(f"head-{depth}-pairs", _cross(1, 3, 200, 1100, depth)),
            Case(f"head-{depth}-pairs-peaked", _cross(1, 1, 70, 1024, depth, spread=4.0)),
        )
    ),
    Case("scale", _cross(2, 3, 50, 77, 40, scale=0.03)),
    Case("peaked", _cross(2, 2, 50, 77, 64, spread=4.0)),
    Case("contiguous", _contiguous(2, 2, 50, 77, 64)),
    Case("packed", _packed(2, 3, 65, 24)),
    Case("packed-200", _packed(1, 2, 200, 64)),
    Case("causal", _packed(1, 2, 40, 32, is_causal=True)),
    Case("head-36", _packed(1, 2, 40, 36)),
    *(
        Case(f"mask-{name}", _masked(shape, False))
        for name, shape in (("heads", (2, 2, 24, 24)), ("shared", (24, 24)), ("keys", (2, 1, 1, 24)))
    ),
    Case("mask-boolean", _masked((2, 1, 24, 24), True)),
    Case("mask-boolean-keys", _masked((2, 1, 1, 24), True)),
    Case("grouped", _grouped(6, 2, 40, 56, 32)),
    Case("grouped-one-head", _grouped(4, 1, 40, 40, 64, is_causal=True)),
    Case("head-264", _packed(2, 1, 70, 264)),
    Case("head-512", _packed(1, 2, 37, 512, scale=0.02)),
    Case("head-512-peaked", _cross(1, 1, 40, 150, 512, spread=4.0)),
    Case("no-queries", _cross(1, 2, 0, 77, 64)),
]

# B, H, L, S, D: SDXL at 1024 x 1024, SD1.5 at 512 x 512, Flux at 1024 x 1024, and the VAE at 512 x 512.
SHAPES = [
    (2, 10, 4096, 4096, 64),
    (2, 20, 1024, 1024, 64),
    (2, 10, 4096, 77, 64),
    (2, 20, 1024, 77, 64),
    (2, 8, 4096, 4096, 40),
    (2, 8, 4096, 77, 40),
    (2, 8, 1024, 77, 80),
    (2, 8, 256, 256, 160),
    (2, 8, 64, 77, 160),
    (1, 24, 4608, 4608, 128),
    (1, 1, 4096, 4096, 512),
]


def _long_mask(shape: tuple[int, ...], boolean: bool) -> Make:
    """Of a prompt behind an image's tokens, of which the last don't count."""

    def make(dtype: torch.dtype, device: torch.device) -> Made:
        (q, k, v), _ = _packed(2, 8, 1280, 128)(dtype, device)
        seen = torch.ones(shape, dtype=torch.bool, device=device)
        seen[..., 1100:] = False
        return (
            q,
            k,
            v,
            seen if boolean else torch.zeros(shape, dtype=dtype, device=device).masked_fill(~seen, -1e4),
        ), {}

    return make


def _mask_lying(lie: Callable[[Data], torch.Tensor]) -> Make:
    """A mask [1, 8, 256, 256] that lies in memory as ``lie`` has it."""

    def make(dtype: torch.dtype, device: torch.device) -> Made:
        return (*_packed(1, 8, 256, 64)(dtype, device)[0], lie(Data(dtype, device))), {}

    return make


GPU_CASES = [
    Case("mask-heads-innermost", _mask_lying(lambda data: data.normal(256, 256, 8).permute(2, 0, 1)[None])),
    Case("mask-keys-first", _mask_lying(lambda data: data.normal(1, 8, 256, 256).mT)),
    Case("mask-one-for-all-keys", _mask_lying(lambda data: data.normal(1, 8, 256, 1))),
    Case("mask-part-of-rows", _mask_lying(lambda data: data.normal(1, 8, 256, 264)[..., 3:259])),
    Case("mask-part-of-odd-rows", _mask_lying(lambda data: data.normal(1, 8, 256, 259)[..., :256])),
    Case("mask-innermost-boolean", _mask_lying(lambda data: data.normal(256, 256, 8).permute(2, 0, 1)[None] > -0.5)),
    Case("mask-of-a-prompt", _long_mask((2, 1, 1, 1280), False)),
    Case("mask-of-a-prompt-boolean", _long_mask((2, 1, 1, 1280), True)),
    Case("mask-of-pairs", _long_mask((1280, 1280), False)),
    Case("grouped-24-8", _grouped(24, 8, 1100, 1100, 120)),
    *(
        Case(f"{b}x{h}x{q}x{k}-head-{d}", _packed(b, h, q, d) if q == k else _cross(b, h, q, k, d))
        for b, h, q, k, d in SHAPES
    ),
    Case("past-2-31-elements", _far_apart, slow=True),
]
