"""``python -m benchmarks.causal``: ``generate()`` with a static cache, one sequence, by a random Llama of 1B in bf16.

Eager, transformers' own use of torch.compile for static caches, and ours, interleaved in one process: milliseconds a
token, and how many of the tokens are eager's (random weights decide between tokens by a hair, so a bit less than all is
no fault).
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from .command import need_cuda, parser_of
from .full_size import new_modules
from .interleaved import rounds
from .machine import facts, write
from .tables import markdown

_DEVICE = torch.device("cuda")
_PROVIDERS = ("eager", "compile", "ours")
_PROMPT, _NEW = 128, 128
_LLAMA = {  # Llama 3.2 1B
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 4096,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
}


@dataclass
class Row:
    """One provider's outcome."""

    model: str
    dtype: str
    provider: str
    ms: float = 0.0
    first_call_s: float = 0.0
    same_tokens: float = 0.0
    rounds_ms: list[float] = field(default_factory=list)


def build() -> Any:
    """The model."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    with new_modules(_DEVICE, torch.bfloat16):
        return LlamaForCausalLM(LlamaConfig(**_LLAMA)).eval().requires_grad_(False)


def generator_of(provider: str, model: Any, prompt: torch.Tensor, new: int) -> Callable[[], torch.Tensor]:
    """What generates so many new tokens, and returns all."""
    if provider == "ours":
        import sfast_core

        handle = sfast_core.compile(model, name="Llama 1B")
        assert handle.module is model
    options: dict[str, Any] = {
        "max_new_tokens": new,
        "min_new_tokens": new,
        "do_sample": False,
        "cache_implementation": "static",
        "pad_token_id": 0,
    }
    if provider != "compile":
        options["disable_compile"] = True  # which transformers does by itself for a static cache
    return lambda: model.generate(prompt, attention_mask=torch.ones_like(prompt), **options)


def measure(least_rounds: int, length: int) -> list[Row]:
    """All providers, each with its own copy of the weights, behind a prompt of so many tokens and 128 more."""
    original = build()
    prompt = torch.randint(
        _LLAMA["vocab_size"], (1, length), device=_DEVICE, generator=torch.Generator(_DEVICE).manual_seed(1)
    )
    pairs: list[tuple[Row, Callable[[], torch.Tensor]]] = []
    tokens = None
    for provider in _PROVIDERS:
        print(f"Llama 1B: {provider} ...", flush=True)
        row = Row(f"Llama 1B behind {length} tokens", "bfloat16", provider)
        generate = generator_of(provider, copy.deepcopy(original), prompt, _NEW)
        start = time.perf_counter()
        found = generate()
        torch.cuda.synchronize()
        row.first_call_s = time.perf_counter() - start
        generate()
        tokens = found if tokens is None else tokens
        row.same_tokens = float((found == tokens).float().mean())
        pairs.append((row, generate))
    for order in rounds(pairs, least_rounds):
        for row, generate in order:
            torch.cuda.synchronize()
            start = time.perf_counter()
            generate()
            torch.cuda.synchronize()
            row.rounds_ms.append((time.perf_counter() - start) * 1000 / _NEW)
    for row, _ in pairs:
        row.ms = statistics.median(row.rounds_ms)
    return [row for row, _ in pairs]


def table(rows: list[Row]) -> str:
    """The rows as a Markdown table."""
    head = ["generate() with a static cache", "provider", "ms a token", "x eager", "first call", "tokens as eager's"]
    found = []
    for row in rows:
        cells = [f"{row.model}, {row.dtype}", row.provider, f"{row.ms:.2f}", f"{rows[0].ms / row.ms:.2f}"]
        found.append([*cells, f"{row.first_call_s:.1f} s", f"{row.same_tokens:.0%}"])
    return markdown(head, found)


def main() -> None:
    """Parse arguments, measure, print, write."""
    parser = parser_of("causal", __doc__)
    parser.add_argument("--rounds", type=int, default=6, help="at least how many rounds")
    parser.add_argument("--prompt", type=int, default=_PROMPT, help="tokens of the prompt, at most 3968")
    args = parser.parse_args()
    need_cuda("causal")
    args.out.mkdir(parents=True, exist_ok=True)
    rows = measure(args.rounds, args.prompt)
    print("\n" + write(args.out, "causal", rows, table(rows), facts()))


if __name__ == "__main__":
    main()
