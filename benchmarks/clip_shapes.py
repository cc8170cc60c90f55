"""The names and shapes of CLIP's weights in checkpoints of SD1.5 and SDXL."""

from __future__ import annotations

from collections.abc import Iterator

_VOCABULARY, _TOKENS = 49408, 77
Shapes = Iterator[tuple[str, tuple[int, ...]]]


def affine(name: str, width: int) -> Shapes:
    """A norm's weight and bias."""
    yield f"{name}.weight", (width,)
    yield f"{name}.bias", (width,)


def linear(name: str, rows: int, columns: int, bias: bool = True) -> Shapes:
    """A linear layer's weight, and its bias."""
    yield f"{name}.weight", (rows, columns)
    if bias:
        yield f"{name}.bias", (rows,)


def clip_l(name: str, width: int = 768, layers: int = 12) -> Shapes:
    """CLIP-L, as transformers names it."""
    model = f"{name}.transformer.text_model"
    yield f"{model}.embeddings.token_embedding.weight", (_VOCABULARY, width)
    yield f"{model}.embeddings.position_embedding.weight", (_TOKENS, width)
    for index in range(layers):
        layer = f"{model}.encoder.layers.{index}"
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            yield from linear(f"{layer}.self_attn.{part}", width, width)
        yield from linear(f"{layer}.mlp.fc1", 4 * width, width)
        yield from linear(f"{layer}.mlp.fc2", width, 4 * width)
        yield from affine(f"{layer}.layer_norm1", width)
        yield from affine(f"{layer}.layer_norm2", width)
    yield from affine(f"{model}.final_layer_norm", width)


def clip_g(name: str, width: int = 1280, layers: int = 32) -> Shapes:
    """CLIP-G, as open_clip names it."""
    model = f"{name}.model"
    yield f"{model}.token_embedding.weight", (_VOCABULARY, width)
    yield f"{model}.positional_embedding", (_TOKENS, width)
    yield f"{model}.text_projection", (width, width)
    for index in range(layers):
        layer = f"{model}.transformer.resblocks.{index}"
        yield f"{layer}.attn.in_proj_weight", (3 * width, width)
        yield f"{layer}.attn.in_proj_bias", (3 * width,)
        yield from linear(f"{layer}.attn.out_proj", width, width)
        yield from linear(f"{layer}.mlp.c_fc", 4 * width, width)
        yield from linear(f"{layer}.mlp.c_proj", width, 4 * width)
        yield from affine(f"{layer}.ln_1", width)
        yield from affine(f"{layer}.ln_2", width)
    yield from affine(f"{model}.ln_final", width)
