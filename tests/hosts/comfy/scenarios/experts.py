"""Mixtures of experts (HiDream, Hunyuan3D 2.1) from quantised checkpoints: the rows that are chosen, from the first call
on, with the host's own picture, also with LoRAs on experts.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import comfy.model_management
import comfy.model_patcher
import comfy.sample
import comfy.supported_models
import comfy.utils
import tiny
import torch
from driver import PACK, assert_close, assert_differs, assert_fused, calls, fast_compile, report_of

LOWERING = importlib.import_module(".sfast_core.lowering", PACK.__name__)
OPS = ("quantise", "scaled_linear", "routed_experts", "routed_scaled_experts")
HIDREAM: dict[str, Any] = {"image_model": "hidream", "attention_head_dim": 128, "axes_dims_rope": [64, 32, 32]}
HIDREAM |= {"caption_channels": [256, 256], "patch_size": 2, "max_resolution": [128, 128], "in_channels": 16}
HIDREAM |= {"out_channels": 16, "llama_layers": [0, 1], "num_attention_heads": 2, "num_layers": 1, "text_emb_dim": 256}
HIDREAM |= {"num_routed_experts": 4, "num_activated_experts": 2, "num_single_layers": 1}
HUNYUAN_3D: dict[str, Any] = {"image_model": "hunyuan3d2_1", "in_channels": 64, "context_dim": 256, "hidden_size": 128}
HUNYUAN_3D |= {"mlp_ratio": 4.0, "num_heads": 2, "depth": 7, "qkv_bias": False, "guidance_cond_proj_dim": None}
#: Class, options, a latent's shape, tokens and width of a prompt, how many mixtures there are.
FAMILIES = {
    "hidream": ("HiDream", HIDREAM, (1, 16, 16, 16), (16, 256), 2),
    "hunyuan3d": ("Hunyuan3Dv2_1", HUNYUAN_3D, (1, 64, 32), (20, 256), 6),
}


@contextmanager
def _as_on_a_gpu() -> Iterator[None]:
    """The passes find kernels, for which their meaning stands here, and the host quantises float8's inputs."""
    found, asked = LOWERING.has_impl, comfy.model_management.supports_fp8_compute
    LOWERING.has_impl = lambda *_: lambda reference, *args: reference.__name__ in OPS
    comfy.model_management.supports_fp8_compute = lambda device=None: True
    try:
        yield
    finally:
        LOWERING.has_impl, comfy.model_management.supports_fp8_compute = found, asked


def _model(family: str, how: dict[str, Any]) -> Any:
    """A patcher of a tiny one of the host's own class, loaded from a quantised checkpoint."""
    name, options, *_ = FAMILIES[family]
    cpu, kind = torch.device("cpu"), getattr(comfy.supported_models, name)

    def made(weights: dict[str, torch.Tensor] | None) -> Any:
        config = kind(dict(options))
        if weights is not None:
            config.quant_config = comfy.utils.detect_layer_quantization(weights, "")
        config.set_inference_dtype(torch.bfloat16, torch.bfloat16 if weights is not None else None)
        return config.get_model({}, "", device=cpu)

    weights = tiny.quantised(tiny.fill(made(None).diffusion_model.state_dict(), torch.bfloat16), **how)
    model = made(weights)
    model.load_model_weights(weights, "")
    return comfy.model_patcher.ModelPatcher(model.eval(), load_device=cpu, offload_device=cpu)


def _sample(model: Any, family: str) -> torch.Tensor:
    _, _, shape, prompt, _ = FAMILIES[family]
    latent, prompts = torch.zeros(shape), []
    for seed in (1, 2):
        llama = {
            "conditioning_llama3": tiny.noise((1, 32, 16, 256), seed + 2),
            "pooled_output": tiny.noise((1, 256), 9),
        }
        prompts.append([[tiny.noise((1, *prompt), seed), llama if family == "hidream" else {}]])
    noise = comfy.sample.prepare_noise(latent, 3)
    return comfy.sample.sample(model, noise, 2, 4.0, "euler", "simple", *prompts, latent, seed=3, disable_pbar=True)


def _same(family: str, how: dict[str, Any], limit: float = 1e-1) -> None:
    if how["how"] not in tiny.formats():
        return
    with _as_on_a_gpu():
        model = _model(family, how)
        plain = _sample(model, family)
        fast = fast_compile.apply(model)
        assert_close(_sample(fast, family), plain, limit)
        before = calls(model)
        assert_close(_sample(fast, family), plain, limit)
        assert_fused(model, before)
        assert not calls(model)["eager"], report_of(model).reasons
        (found,) = report_of(model).signatures
        assert found.passes["route_experts"] == FAMILIES[family][-1] and not found.live, (found.passes, found.live)


def scenario_hidream() -> None:
    _same("hidream", {"how": "int8_tensorwise"})
    _same("hidream", {"how": "float8_e4m3fn"})


def scenario_hidream_rotated() -> None:
    _same("hidream", {"how": "int8_tensorwise", "rotate": 64})


def scenario_hunyuan3d() -> None:
    _same("hunyuan3d", {"how": "int8_tensorwise"})
    _same("hunyuan3d", {"how": "float8_e4m3fn"}, 2e-1)


def scenario_loras_on_experts() -> None:
    """Patched as the host does it, in the memory that the program reads: no new trace."""
    if "int8_tensorwise" not in tiny.formats():
        return
    how, keys = {"how": "int8_tensorwise"}, []
    for expert, layer in ((0, "w1"), (3, "w2")):
        keys.append(f"diffusion_model.double_stream_blocks.0.block.ff_i.experts.{expert}.{layer}.weight")
    with _as_on_a_gpu():
        model, twin = _model("hidream", how), _model("hidream", how)
        fast, pictures = fast_compile.apply(model), []
        _sample(fast, "hidream")
        before = calls(model)
        for strength in (0.0, 1.0, 0.5, 0.0):
            patched = []
            for patcher in (fast.clone(), twin.clone()):
                for seed, key in enumerate(keys if strength else []):
                    shape = tuple(comfy.utils.get_attr(patcher.model, key).shape)
                    patcher.add_patches({key: (tiny.noise(shape, 70 + seed, 0.3),)}, strength)
                patched.append(_sample(patcher, "hidream"))
            assert_close(*patched, 1e-1)
            pictures.append(patched[0])
        since = calls(model) - before
        assert since["fused"] and not since["traced"] and not since["eager"], dict(since)
        assert torch.equal(pictures[0], pictures[3])
        assert_differs(pictures[0], pictures[1])
        assert_differs(pictures[1], pictures[2])
