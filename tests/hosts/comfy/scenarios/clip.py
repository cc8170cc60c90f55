"""Apply Fast Compile (CLIP): every text encoder, with LoRAs, clip skip, token weights and long prompts."""

from __future__ import annotations

import asyncio
import copy
import gc
import tempfile
import weakref
from pathlib import Path
from typing import Any

import comfy.hooks
import comfy.model_management as management
import comfy.sd
import comfy.sd1_clip
import comfy.text_encoders.genmo
import tiny
import torch
from driver import PACK, assert_close, assert_differs, fast_compile
from part_tools import (
    Capturing,
    assert_parts_fused,
    assert_refused,
    clip,
    encode,
    encode_length,
    language_models,
    part_calls,
    reports,
    text_encoders,
)

_PROMPTS = ("a cat", "a cat, sleeping on the (red:1.3) sofa [of] an old woman", "", "one word after another, " * 40)
_L, _G = "Text encoder clip_l (CLIPTextModel)", "Text encoder clip_g (CLIPTextModel)"


def _node() -> Any:
    async def nodes() -> list[Any]:
        listed: list[Any] = await (await PACK.comfy_entrypoint()).get_node_list()
        return listed

    return next(kind for kind in asyncio.run(nodes()) if kind.GET_SCHEMA().node_id == "ApplyFastCompileCLIP").execute


def _lora(clip_object: Any, strength: float = 1.0, seed: int = 5) -> Any:
    """What the node Load LoRA does to the text encoders."""
    weights = {}
    for layer in range(3):
        for part, columns, rows in (
            ("self_attn_q_proj", 64, 64),
            ("self_attn_v_proj", 64, 64),
            ("mlp_fc1", 64, 128),
            ("mlp_fc2", 128, 64),
        ):
            name = f"lora_te_text_model_encoder_layers_{layer}_{part}"
            weights[f"{name}.lora_up.weight"] = tiny.noise((rows, 4), seed, 0.5)
            weights[f"{name}.lora_down.weight"] = tiny.noise((4, columns), seed + 1, 0.2)
            seed += 2
    return comfy.sd.load_lora_for_models(None, clip_object, weights, 0.0, strength)[1]


def _same(mine: tuple[torch.Tensor, torch.Tensor], theirs: tuple[torch.Tensor, torch.Tensor]) -> None:
    assert_close(mine[0], theirs[0])
    assert_close(mine[1], theirs[1])


def scenario_prompts() -> None:
    """Weighted and long ones, and none; twice the same bits; one trace for every prompt of as many sections."""
    for family, names in (("sd15", {_L}), ("sdxl", {_L, _G})):
        plain, twin = clip(family), clip(family)
        fast = fast_compile.apply_clip(plain)
        for text in _PROMPTS:
            first = encode(fast, text)
            _same(first, encode(twin, text))
            again = encode(fast, text)
            assert torch.equal(first[0], again[0]) and torch.equal(first[1], again[1])
        before = part_calls(plain.cond_stage_model)
        for text in ("a dog", "a (dog:0.6) on the beach", "another word after another, " * 36):
            _same(encode(fast, text), encode(twin, text))
        assert_parts_fused(plain.cond_stage_model, before)
        assert set(reports(plain.cond_stage_model)) == names
        assert_differs(encode(fast, _PROMPTS[0])[0], encode(fast, _PROMPTS[2])[0])


def scenario_a_textual_inversion() -> None:
    """Its vectors stand among the tokens' own; other vectors of as many tokens need no other trace."""
    plain, twin = clip(), clip()
    fast = fast_compile.apply_clip(plain)
    with tempfile.TemporaryDirectory() as folder:
        for name, seed in (("old", 8), ("new", 9)):
            tiny.save({"emb_params": tiny.noise((2, 64), seed)}, Path(folder) / f"{name}.safetensors")
        for one in (plain, twin, fast):
            one.tokenizer.clip_l.embedding_directory, one.tokenizer.clip_l.embedding_size = [folder], 64
        pictures = []
        for name in ("old", "new", "old"):
            pictures.append(encode(fast, f"a cat in the embedding:{name} style"))
            _same(pictures[-1], encode(twin, f"a cat in the embedding:{name} style"))
    assert torch.equal(pictures[0][0], pictures[2][0])
    assert_differs(pictures[1][0], pictures[0][0])
    assert reports(fast.patcher.model)[_L].calls["traced"] == 1


def scenario_clip_skip() -> None:
    for family in ("sd15", "sdxl"):
        plain, twin = clip(family), clip(family)
        fast, seen = fast_compile.apply_clip(plain), []
        for layer in (-1, -2, -3, -1):
            mine, theirs = fast.clone(), twin.clone()
            mine.clip_layer(layer), theirs.clip_layer(layer)
            before = part_calls(plain.cond_stage_model)
            encode(mine, "a cat")
            got = encode(mine, "a cat")
            _same(got, encode(theirs, "a cat"))
            assert_parts_fused(plain.cond_stage_model, before, traced=True)
            seen.append(got[0])
        assert_differs(seen[0], seen[1]), assert_differs(seen[1], seen[2])
        assert torch.equal(seen[0], seen[3])


def scenario_unprojected_and_all_layers() -> None:
    """What other nodes ask: the pooled vector before its projection, and the layers themselves."""
    plain, twin = clip("sdxl"), clip("sdxl")
    fast = fast_compile.apply_clip(plain)
    for _ in range(2):
        mine, theirs = [
            one.encode_from_tokens(one.tokenize("a cat"), return_pooled="unprojected") for one in (fast, twin)
        ]
        _same(mine, theirs)
    mine, theirs = [one.encode_from_tokens_scheduled(one.tokenize("a cat")) for one in (fast, twin)]
    _same((mine[0][0], mine[0][1]["pooled_output"]), (theirs[0][0], theirs[0][1]["pooled_output"]))
    assert_parts_fused(plain.cond_stage_model, traced=True)


def scenario_a_lora_before_and_behind() -> None:
    plain, twin = clip(), clip()
    bare, expected = encode(twin, "a cat"), encode(_lora(twin), "a cat")
    assert_differs(expected[0], bare[0])
    for fast in (fast_compile.apply_clip(_lora(plain)), _lora(fast_compile.apply_clip(plain))):
        encode(fast, "a cat")
        before = part_calls(plain.cond_stage_model)
        _same(encode(fast, "a cat"), expected)
        assert_parts_fused(plain.cond_stage_model, before)


def scenario_a_lora_changed_removed_and_put_back() -> None:
    """Never the weights of before, with a graph or without; nothing is traced anew. Graphs that a LoRA ends after two
    calls each aren't captured for long.
    """

    def steps(replayed: str) -> None:
        plain, twin = clip(), clip()
        fast = fast_compile.apply_clip(plain)
        encode(fast, "a cat"), encode(fast, "a cat")
        before, seen = part_calls(plain.cond_stage_model), []
        for strength in (None, 1.0, 0.3, None, 1.0):
            mine, theirs = (fast, twin) if strength is None else (_lora(fast, strength), _lora(twin, strength))
            seen.append(encode(mine, "a cat"))
            _same(seen[-1], encode(theirs, "a cat"))
            _same(encode(mine, "a dog"), encode(theirs, "a dog"))
        assert_differs(seen[1][0], seen[0][0]), assert_differs(seen[2][0], seen[1][0])
        assert torch.equal(seen[3][0], seen[0][0]) and torch.equal(seen[4][0], seen[1][0])
        since = part_calls(plain.cond_stage_model) - before
        assert since[replayed] and since.keys() <= {replayed, "fused"} and since.total() == 10, dict(since)
        assert torch.equal(encode(plain, "a cat")[0], encode(twin, "a cat")[0]), "the plain one has other weights"
        assert torch.equal(encode(_lora(plain), "a cat")[0], encode(_lora(twin), "a cat")[0])

    steps("fused")
    with Capturing() as graphs:
        steps("replayed")
        assert graphs.captures


def scenario_a_lora_scheduled_by_a_hook() -> None:
    """The host writes it into the weights for a part of the schedule."""

    def hooked(one: Any) -> list[Any]:
        weights = {"lora_te_text_model_encoder_layers_1_mlp_fc1.lora_up.weight": tiny.noise((128, 4), 5, 0.5)}
        weights["lora_te_text_model_encoder_layers_1_mlp_fc1.lora_down.weight"] = tiny.noise((4, 64), 6, 0.2)
        keyframes = comfy.hooks.HookKeyframeGroup()
        keyframes.add(comfy.hooks.HookKeyframe(strength=0.0, start_percent=0.0))
        keyframes.add(comfy.hooks.HookKeyframe(strength=1.0, start_percent=0.4))
        clip_object, hooks = comfy.hooks.load_hook_lora_for_models(None, one, weights, 0.0, 1.0)[1:]
        hooks.set_keyframes_on_hooks(keyframes)
        clip_object.patcher.forced_hooks = hooks
        clip_object.use_clip_schedule = True
        return list(clip_object.encode_from_tokens_scheduled(clip_object.tokenize("a cat")))

    plain, twin = clip(), clip()
    expected = hooked(twin)
    fast = fast_compile.apply_clip(plain)
    hooked(fast)
    got = hooked(fast)
    assert len(got) == len(expected) == 2
    assert_differs(got[0][0], got[1][0])
    for mine, theirs in zip(got, expected, strict=True):
        assert_close(mine[0], theirs[0])
    assert_parts_fused(plain.cond_stage_model, traced=True)


def scenario_t5() -> None:
    """With a mask over its padding, and without."""
    options = {"t5xxl_model_config": {"num_layers": 2, "d_model": 64, "d_ff": 128, "num_heads": 2, "d_kv": 32}}
    for masked in (True, False):

        class Model(comfy.text_encoders.genmo.MochiT5XXL):  # type: ignore[misc]
            pass

        made = [text_encoders(Model, comfy.text_encoders.genmo.MochiT5Tokenizer, **options) for _ in range(2)]
        for one in made:
            one.cond_stage_model.t5xxl.enable_attention_masks = masked
        plain, twin = made
        fast = fast_compile.apply_clip(plain)
        for text in ("a cat", "a cat", "a dog on the beach"):
            assert_close(fast.encode_from_tokens(fast.tokenize(text)), twin.encode_from_tokens(twin.tokenize(text)))
        assert set(reports(plain.cond_stage_model)) == {"Text encoder t5xxl (T5)"}
        assert_parts_fused(plain.cond_stage_model, traced=True)


def scenario_language_models() -> None:
    """Prompts of many lengths, padded for one trace: masks or none, the last layer's, one's or all layers' results."""
    for make in language_models().values():
        plain = make()
        fast = fast_compile.apply_clip(plain)
        for length in (70, 80, 100, 110, 128, 70, 40):
            expected, got = encode_length(plain, length), encode_length(fast, length)
            assert got.shape == expected.shape and got.stride() == expected.stride()
            assert_close(got, expected)
        calls = part_calls(plain.cond_stage_model)
        assert calls == {"traced": 2, "fused": 5}, dict(calls)


def scenario_the_incoming_clip_stays_as_it_was() -> None:
    plain = clip("sdxl")
    model = plain.cond_stage_model
    expected = encode(plain, _PROMPTS[1])
    attributes, callbacks, keys = dict(plain.__dict__), copy.deepcopy(plain.patcher.callbacks), list(model.state_dict())
    fast = fast_compile.apply_clip(plain)
    for _ in range(2):
        encode(fast, _PROMPTS[1]), encode(fast, _PROMPTS[1])
        got = encode(plain, _PROMPTS[1])
        assert torch.equal(got[0], expected[0]) and torch.equal(got[1], expected[1])
    assert plain.__dict__ == attributes and plain.patcher.callbacks == callbacks and list(model.state_dict()) == keys
    for module in model.modules():
        assert "forward" not in module.__dict__ and not module._forward_pre_hooks
    assert fast.patcher.model is model and fast.clone().cond_stage_model is fast.cond_stage_model
    assert isinstance(fast.cond_stage_model, type(model)) and fast.cond_stage_model.clip_l is model.clip_l
    assert list(fast.get_sd()) == list(plain.get_sd())


def scenario_the_node() -> None:
    apply, plain = _node(), clip()
    assert apply(plain, enabled=False).result[0] is plain
    expected = encode(plain, "a cat")
    fast = apply(plain).result[0]
    encode(fast, "a cat")
    _same(encode(fast, "a cat"), expected)
    again = apply(apply(fast).result[0], cuda_graphs=False).result[0]
    encode(again, "a cat")
    _same(encode(again, "a cat"), expected)
    assert reports(plain.cond_stage_model)[_L].settings["cuda_graphs"] is False
    assert_refused(lambda: apply(None), "clip:")
    assert_refused(lambda: apply(object()), "clip:")
    assert_refused(lambda: apply(plain, settings=5), "settings:")


def scenario_an_error_surfaces() -> None:
    plain = clip()
    fast, seen = fast_compile.apply_clip(plain), []
    encode(fast, "a cat")
    for one in (plain, fast, fast):
        try:
            one.encode_from_tokens({"l": [[(10**6, 1.0)] * 77]})
        except Exception as error:
            seen.append((type(error), str(error)))
    assert len(seen) == 3 and len(set(seen)) == 1, seen
    encode(fast, "a cat")
    before = part_calls(plain.cond_stage_model)
    encode(fast, "a cat")
    assert_parts_fused(plain.cond_stage_model, before)


def scenario_nothing_is_left_when_it_goes() -> None:
    """Without the garbage collector."""
    gc.collect()
    gc.disable()
    try:
        for last in ("fast", "plain", "lora"):
            plain = clip()
            fast = fast_compile.apply_clip(plain)
            encode(fast, "a cat"), encode(fast, "a cat")
            if last == "plain":
                encode(plain, "a cat")
            elif last == "lora":
                encode(_lora(fast), "a cat")
            alive = weakref.ref(plain.cond_stage_model), weakref.ref(fast)
            del plain, fast
            management.unload_all_models()
            assert [ref() for ref in alive] == [None, None], f"it is still there ({last} last)"
            assert fast_compile.states() == []
    finally:
        gc.enable()


def scenario_unloaded_and_loaded_again() -> None:
    with Capturing() as graphs:
        plain = clip("sdxl")
        fast = fast_compile.apply_clip(plain)
        encode(fast, "a cat")
        quick = encode(fast, "a cat")
        assert graphs.bytes and graphs.captures == 2
        management.unload_all_models()
        assert graphs.bytes == 0
        before = part_calls(plain.cond_stage_model)
        again = encode(fast, "a cat")
        assert torch.equal(again[0], quick[0]) and torch.equal(again[1], quick[1])
        since = part_calls(plain.cond_stage_model) - before
        assert since == {"replayed": 2} and graphs.captures == 4
        fast.patcher.detach()
        assert graphs.bytes == 0


def scenario_what_the_host_brings_is_told() -> None:
    """Under dynamic VRAM, where it makes the model ready for each prompt, what it had unloaded is asked for then."""
    fast = fast_compile.apply_clip(fast_compile.apply_clip(clip()))
    encode(fast, "a cat")
    state = next(each for each in fast_compile.states() if each.base_model() is fast.patcher.model)
    told: list[Any] = []
    state.on_load = lambda: told.append(None)  # type: ignore[method-assign]
    for _ in range(2):
        fast.patcher.detach()
        encode(fast, "a dog")
    assert len(told) == 2, "once each, by the second of two nodes alone"


def scenario_a_part_is_unloaded() -> None:
    """Silently: LoRAs are then computed of weights at each call."""
    plain, twin = clip(), clip()
    fast = _lora(fast_compile.apply_clip(plain))
    encode(fast, "a cat"), encode(fast, "a cat")
    other = _lora(twin)
    other.load_model(), other.patcher.partially_unload(other.patcher.offload_device, 10**5)
    before = part_calls(plain.cond_stage_model)
    fast.patcher.partially_unload(fast.patcher.offload_device, 10**5)
    with torch.no_grad():
        mine = fast.cond_stage_model.encode_token_weights(fast.tokenize("a cat"))
        theirs = other.cond_stage_model.encode_token_weights(other.tokenize("a cat"))
    assert_close(mine[0], theirs[0])
    since = part_calls(plain.cond_stage_model) - before
    assert since and not since["eager"], dict(since)
    _same(encode(fast, "a cat"), encode(other, "a cat"))
