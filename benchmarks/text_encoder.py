"""``python -m benchmarks.text_encoder``: one prompt, eager and torch.compile beside ours, interleaved in one process.

CLIP-L (SD1.5, and SDXL's first) and OpenCLIP-G (SDXL's second) with 77 tokens in fp16; T5-XXL (Flux, SD3) and a
Qwen2.5-VL of 7B (Qwen-Image) without the half of its alike layers, which four copies leave no room for, with 512 tokens
in bf16. Random weights, transformers' classes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from .full_size import new_modules
from .interleaved import Subject, main

_DEVICE = torch.device("cuda")
_TOKENS, _VOCABULARY = 77, 49408
_LONG = 512  #: tokens
_CONFIGS: dict[str, dict[str, Any]] = {
    "CLIP-L": {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "hidden_act": "quick_gelu",
    },
    "OpenCLIP-G": {
        "hidden_size": 1280,
        "intermediate_size": 5120,
        "num_hidden_layers": 32,
        "num_attention_heads": 20,
        "hidden_act": "gelu",
    },
}


def _t5(transformers: Any) -> Any:
    config = transformers.T5Config(
        vocab_size=32128, d_model=4096, d_kv=64, d_ff=10240, num_layers=24, num_heads=64, feed_forward_proj="gated-gelu"
    )
    return transformers.T5EncoderModel(config)


def _qwen(transformers: Any) -> Any:
    sizes = {
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 14,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
    }
    return transformers.Qwen2Model(
        transformers.Qwen2Config(vocab_size=152064, max_position_embeddings=32768, rope_theta=1e6, **sizes)
    )


_MODELS: dict[str, tuple[Callable[[Any], Any], dict[str, Any]]] = {
    "T5-XXL": (_t5, {}),
    "Qwen2.5-VL 7B": (_qwen, {"use_cache": False}),
}


def _build(name: str, dtype: torch.dtype) -> Any:
    from transformers import CLIPTextConfig, CLIPTextModel

    torch.manual_seed(0)
    with new_modules(_DEVICE, dtype):
        return CLIPTextModel(CLIPTextConfig(vocab_size=_VOCABULARY, **_CONFIGS[name])).eval().requires_grad_(False)


def _build_model(name: str, dtype: torch.dtype) -> Any:
    import transformers

    torch.manual_seed(0)
    with new_modules(_DEVICE, dtype):
        return _MODELS[name][0](transformers).eval().requires_grad_(False)


def _inputs(_: Any, dtype: torch.dtype) -> dict[str, Any]:
    generator = torch.Generator(_DEVICE).manual_seed(1)
    tokens = torch.randint(_VOCABULARY, (1, _TOKENS), device=_DEVICE, generator=generator)
    tokens[:, -1] = _VOCABULARY - 1  # the end, which is looked for
    return {"input_ids": tokens, "output_hidden_states": True, "return_dict": False}


def _long_inputs(name: str, *_: Any) -> dict[str, Any]:
    """A prompt of a quarter of the tokens, the others padding, as pipelines give it."""
    generator = torch.Generator(_DEVICE).manual_seed(1)
    tokens = torch.randint(32000, (1, _LONG), device=_DEVICE, generator=generator)
    mask = torch.ones_like(tokens)
    mask[:, _LONG // 4 :] = 0
    return {"input_ids": tokens, "attention_mask": mask, "return_dict": False, **_MODELS[name][1]}


if __name__ == "__main__":
    subjects = [Subject(name, torch.float16, functools.partial(_build, name), _inputs) for name in _CONFIGS]
    subjects += [
        Subject(name, torch.bfloat16, functools.partial(_build_model, name), functools.partial(_long_inputs, name))
        for name in _MODELS
    ]
    main("text_encoder", __doc__, "text encoder", subjects)
