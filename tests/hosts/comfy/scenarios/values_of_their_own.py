"""Models whose forwards go by more than tensors: an object with masks, which prompts a call is for, lengths."""

from __future__ import annotations

import types
from collections import Counter
from typing import Any

import comfy.model_patcher
import comfy.supported_models
import tiny
import torch
from driver import assert_close, assert_fused, calls, fast_compile, has, node, sample

CPU = torch.device("cpu")
LTXV: dict[str, Any] = {"image_model": "ltxv", "num_layers": 2, "attention_head_dim": 64, "cross_attention_dim": 128}
LTXV |= {"num_attention_heads": 2, "caption_channels": 256}
SEEDVR2: dict[str, Any] = {"image_model": "seedvr2", "norm_eps": 1e-5, "num_layers": 4, "mlp_type": "swiglu"}
SEEDVR2 |= {"vid_dim": 256, "heads": 2, "head_dim": 128, "mm_layers": 2}


def _model(name: str, options: dict[str, Any]) -> Any:
    """A patcher of a tiny one of the host's own class."""
    config = getattr(comfy.supported_models, name)(dict(options))
    config.set_inference_dtype(torch.float32, None)
    with torch.inference_mode(False):
        model = config.get_model({}, "", device=CPU).eval()
        shapes = model.diffusion_model.state_dict()
        model.diffusion_model.load_state_dict(tiny.fill(shapes, torch.float32))
    return comfy.model_patcher.ModelPatcher(model, load_device=CPU, offload_device=CPU)


def _prompt(seed: int, tokens: int, width: int, **more: Any) -> list[Any]:
    return [[tiny.noise((1, tokens, width), seed), more]]


def scenario_guides_of_a_video_whose_strength_is_not_one() -> None:
    """LTX Video hands its blocks an object with their masks."""
    plain = _model("LTXV", LTXV)
    vae = types.SimpleNamespace(
        downscale_index_formula=(8, 32, 32), encode=lambda pixels: tiny.noise((1, 128, 1, 4, 4), int(pixels.sum()) % 7)
    )
    fast = fast_compile.apply(plain)
    before: Counter[str] = Counter()
    for turn, strength in enumerate((1.0, 0.7, 0.7, 0.4)):
        more = {"attention_mask": torch.ones(1, 16, dtype=torch.long), "frame_rate": 25}
        guided = node("nodes_lt", "LTXVAddGuide", whole=True)(
            *(_prompt(seed, 16, 256, **more) for seed in (1, 2)), vae, {"samples": torch.zeros(1, 128, 2, 4, 4)},
            tiny.noise((1, 128, 128, 3), turn // 2).sigmoid(), 0, strength,
        )  # fmt: skip
        given = {"positive": guided[0], "negative": guided[1], "latent": guided[2]["samples"], "cfg": 3.0, "seed": turn}
        given["mask"] = guided[2].get("noise_mask")
        assert_close(sample(fast, **given), sample(plain, **given))
        before = calls(plain) if not turn else before
    assert_fused(plain, before)


def scenario_lengths_and_which_prompts_a_call_is_for() -> None:
    """SeedVR2 packs its tokens by lengths, and turns prompts around by which these are."""
    if not has("comfy.ldm.seedvr.model"):
        return
    plain = _model("SeedVR2", SEEDVR2)
    network = plain.model.diffusion_model
    for seed, name in enumerate(("positive_conditioning", "negative_conditioning")):
        getattr(network, name).copy_(tiny.noise(tuple(getattr(network, name).shape), seed))
    fast = fast_compile.apply(plain)
    for seed, (width, cfg) in enumerate(((16, 1.0), (16, 2.0), (20, 1.0), (16, 1.0), (20, 1.0))):
        latent = tiny.noise((1, 16, 3, 16, width), seed)
        positive, negative = node("nodes_seedvr", "SeedVR2Conditioning", whole=True)(plain, {"samples": latent})
        given = {"positive": positive, "negative": negative, "latent": latent, "cfg": cfg, "steps": 1, "seed": seed}
        assert_close(sample(fast, **given), sample(plain, **given))
    assert_fused(plain)
