"""transformers' models through ``sfast_core.compile``: masks with padding and without, caches, ``generate()``, beside
uncompiled twins.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")
pytest.importorskip("transformers.masking_utils")  # before, masks were made otherwise in each model

import sfast_core  # noqa: E402
from sfast_core import CompileConfig  # noqa: E402

VOCABULARY, END, NEAR = 99, 98, 1e-5
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
T5 = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
    "eos_token_id": END,
}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": END}

ENCODERS: dict[str, Callable[[], Any]] = {
    "bert": lambda: transformers.BertModel(transformers.BertConfig(**SMALL)),
    "t5": lambda: transformers.T5EncoderModel(transformers.T5Config(**T5)),
    "umt5": lambda: transformers.UMT5EncoderModel(transformers.UMT5Config(**T5)),
    "clip": lambda: transformers.CLIPTextModel(
        transformers.CLIPTextConfig(**SMALL, **TOKENS, max_position_embeddings=32)
    ),
    "llama": lambda: transformers.LlamaModel(transformers.LlamaConfig(**SMALL, **TOKENS, num_key_value_heads=2)),
    "qwen2": lambda: transformers.Qwen2Model(transformers.Qwen2Config(**SMALL, **TOKENS, num_key_value_heads=2)),
    "qwen3": lambda: transformers.Qwen3Model(
        transformers.Qwen3Config(**SMALL, **TOKENS, num_key_value_heads=2, head_dim=8)
    ),
    "mistral": lambda: transformers.MistralModel(
        transformers.MistralConfig(**SMALL, **TOKENS, num_key_value_heads=2, sliding_window=None)
    ),
    "gemma": lambda: transformers.GemmaModel(
        transformers.GemmaConfig(**SMALL, **TOKENS, num_key_value_heads=2, head_dim=8)
    ),
    "gemma2": lambda: transformers.Gemma2Model(
        transformers.Gemma2Config(**SMALL, **TOKENS, num_key_value_heads=2, head_dim=8, sliding_window=8)
    ),
}
CAUSAL: dict[str, Callable[[], Any]] = {
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL, **TOKENS, num_key_value_heads=2)),
    "qwen3": lambda: transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(**SMALL, **TOKENS, num_key_value_heads=2, head_dim=8)
    ),
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, **TOKENS)
    ),
    "t5": lambda: transformers.T5ForConditionalGeneration(transformers.T5Config(**T5)),
}


def twins(make: Callable[[], Any]) -> tuple[Any, Any, Any]:
    """A compiled model, one that isn't with the same weights, and the report."""
    torch.manual_seed(0)
    slow = make().eval()
    model = make().eval()
    model.load_state_dict(slow.state_dict())
    return model, slow, sfast_core.compile(model, CompileConfig(allow_cpu=True)).engine.report


def prompt(length: int, padding: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """Two prompts, of which the second is padded on the left."""
    ids = torch.randint(3, 97, (2, length), generator=torch.Generator().manual_seed(seed))
    mask = torch.ones_like(ids)
    mask[1, :padding] = 0
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize("name", ENCODERS)
def test_masks_with_padding_and_without_take_turns(name: str) -> None:
    model, slow, report = twins(ENCODERS[name])
    more = {} if name in ("bert", "t5", "umt5", "clip") else {"use_cache": False}
    with torch.inference_mode():
        for length in (12, 9, 12, 9):
            for seed, padding in enumerate((0, 3, 5, 0)):
                given = prompt(length, padding, seed)
                mine, theirs = (m(**given, **more)[0] for m in (model, slow))
                torch.testing.assert_close(mine, theirs, rtol=NEAR, atol=NEAR)
    assert not report.reasons and report.calls["traced"] <= 4 and report.calls["fused"] >= 12, (
        report.calls,
        report.reasons,
    )


@pytest.mark.parametrize("by_config", [False, True])
@pytest.mark.parametrize("name", ENCODERS)
def test_hidden_states_are_collected_from_the_first_call_on(name: str, by_config: bool) -> None:
    """transformers puts hooks onto the layers at the first call that asks for them: it ran as it was."""
    model, slow, report = twins(ENCODERS[name])
    asked = {} if by_config else {"output_hidden_states": True}
    with torch.inference_mode():
        without = [m(**prompt(12, 0)).get("hidden_states") for m in (model, slow)]
        assert without == [None, None]
        for m in (model, slow) if by_config else ():
            for below in m.modules():
                if hasattr(below, "config"):
                    below.config.output_hidden_states = True
        for seed in (1, 2):
            mine, theirs = (m(**prompt(12, 0, seed), **asked).hidden_states for m in (model, slow))
            assert len(mine) == len(theirs) == 3
            torch.testing.assert_close(mine, theirs, rtol=NEAR, atol=NEAR)
    assert not report.reasons and report.calls["traced"] == 2, (report.calls, report.reasons)


@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", CAUSAL)
def test_generate_with_a_static_cache_traces_a_step_once(name: str, sampled: bool) -> None:
    model, slow, report = twins(CAUSAL[name])
    for _ in range(2):
        tokens = []
        for m in (model, slow):
            torch.manual_seed(3)
            with torch.no_grad():
                tokens.append(
                    m.generate(
                        **prompt(6, 2),
                        max_new_tokens=12,
                        min_new_tokens=12,
                        do_sample=sampled,
                        cache_implementation="static",
                    )
                )
        assert torch.equal(*tokens)
    assert not report.reasons, report.reasons
    assert report.calls["traced"] == 2 and report.calls["fused"] >= 22


def test_generate_as_it_is_says_that_its_cache_grows() -> None:
    model, slow, report = twins(CAUSAL["llama"])
    with torch.no_grad():
        tokens = [
            m.generate(**prompt(6, 2), max_new_tokens=8, min_new_tokens=8, do_sample=False) for m in (model, slow)
        ]
    assert torch.equal(*tokens)
    assert list(report.reasons) == ["the keys of a DynamicLayer grow with each call"]


@pytest.mark.parametrize("given", [False, True], ids=["the model's", "given"])
def test_a_forward_leaves_the_cache_as_it_would(given: bool) -> None:
    model, slow, report = twins(CAUSAL["llama"])
    for seed in range(3):
        caches = []
        for m in (model, slow):
            cache = transformers.DynamicCache(config=m.config) if given else None
            with torch.inference_mode():
                out = m(
                    **prompt(7, 2, seed),
                    use_cache=True,
                    **({"cache" if "cache" in out_names(m) else "past_key_values": cache} if given else {}),
                )
            caches.append(out.get("cache", None) if "cache" in out else out.past_key_values)
            assert cache is None or caches[-1] is cache
        for mine, theirs in zip(caches[0].layers, caches[1].layers, strict=True):
            torch.testing.assert_close((mine.keys, mine.values), (theirs.keys, theirs.values), rtol=NEAR, atol=NEAR)
            assert vars(mine).keys() == vars(theirs).keys()
    assert report.calls == {"traced": 1, "fused": 2}


def out_names(model: Any) -> list[str]:
    """The names that a model's forward has for its arguments: releases differ in the cache's."""
    return list(inspect.signature(type(model).forward).parameters)


def test_transformers_own_compiler_leaves_a_compiled_model_alone() -> None:
    model, slow, report = twins(CAUSAL["llama"])
    config = transformers.CompileConfig()
    config._compile_all_devices = True
    with torch.no_grad():
        model.generate(
            **prompt(6, 2),
            max_new_tokens=4,
            min_new_tokens=4,
            do_sample=False,
            cache_implementation="static",
            compile_config=config,
        )
    assert report.calls == {"traced": 2, "fused": 2} and not hasattr(model, "_compiled_call")
