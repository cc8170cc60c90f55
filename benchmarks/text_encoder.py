"""``python -m benchmarks.text_encoder``: one prompt of 77 tokens, eager and torch.compile beside ours, interleaved in one process.

CLIP-L (SD1.5, and SDXL's first) and OpenCLIP-G (SDXL's second), random weights, fp16.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from .full_size import new_modules
from .interleaved import Subject, main

_DEVICE = torch.device("cuda")
_TOKENS, _VOCABULARY = 77, 49408
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


def _build(name: str, dtype: torch.dtype) -> Any:
    from transformers import CLIPTextConfig, CLIPTextModel

    torch.manual_seed(0)
    with new_modules(_DEVICE, dtype):
        return CLIPTextModel(CLIPTextConfig(vocab_size=_VOCABULARY, **_CONFIGS[name])).eval().requires_grad_(False)


def _inputs(_: Any, dtype: torch.dtype) -> dict[str, Any]:
    generator = torch.Generator(_DEVICE).manual_seed(1)
    tokens = torch.randint(_VOCABULARY, (1, _TOKENS), device=_DEVICE, generator=generator)
    tokens[:, -1] = _VOCABULARY - 1  # the end, which is looked for
    return {"input_ids": tokens, "output_hidden_states": True, "return_dict": False}


if __name__ == "__main__":
    subjects = [Subject(name, torch.float16, functools.partial(_build, name), _inputs) for name in _CONFIGS]
    main("text_encoder", __doc__, "text encoder, 77 tokens", subjects)
