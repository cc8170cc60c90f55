"""Networks beside a model that its own hooks call, loaded as ComfyUI's model patches: on, changed, off, on again, and at
another size, as without us.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import comfy.model_patcher
import comfy.ops
import comfy.sample
import comfy.supported_models
import tiny
import torch
from driver import assert_close, assert_differs, calls, fast_compile, has, node, report_of

_LUMINA = {"image_model": "lumina2", "patch_size": 2, "in_channels": 16, "dim": 256, "cap_feat_dim": 256, "n_layers": 7}
_LUMINA |= {"qk_norm": True, "n_heads": 2, "n_kv_heads": 2, "axes_dims": [32, 48, 48], "axes_lens": [1536, 512, 512]}
_LUMINA |= {"rope_theta": 256.0, "ffn_dim_multiplier": 8 / 3, "z_image_modulation": True, "time_scale": 1000.0}
_LUMINA |= {"pad_tokens_multiple": 32, "n_refiner_layers": 2}
_ANIMA: dict[str, Any] = {"image_model": "anima", "max_img_h": 240, "max_img_w": 240, "max_frames": 128}
_ANIMA |= {"in_channels": 16, "out_channels": 16, "patch_spatial": 2, "patch_temporal": 1, "model_channels": 256}
_ANIMA |= {"concat_padding_mask": True, "crossattn_emb_channels": 1024, "pos_emb_cls": "rope3d", "num_blocks": 2}
_ANIMA |= {"pos_emb_learnable": True, "pos_emb_interpolation": "crop", "min_fps": 1, "max_fps": 30, "num_heads": 2}
_ANIMA |= {"use_adaln_lora": True, "adaln_lora_dim": 64, "extra_per_block_abs_pos_emb": False}
_ANIMA |= {f"rope_{axis}_extrapolation_ratio": ratio for axis, ratio in (("h", 4.0), ("w", 4.0), ("t", 1.0))}


_FLUX: dict[str, Any] = {"image_model": "flux", "in_channels": 16, "vec_in_dim": 768, "context_in_dim": 64}
_FLUX |= {"hidden_size": 256, "mlp_ratio": 4.0, "num_heads": 2, "depth": 1, "depth_single_blocks": 2, "patch_size": 2}
_FLUX |= {"axes_dim": [16, 56, 56], "theta": 10000, "qkv_bias": True, "guidance_embed": True}
_FLUX |= {"out_channels": 16, "txt_ids_dims": [], "yak_mlp": False, "txt_norm": False}


def _fill(module: torch.nn.Module) -> torch.nn.Module:
    for seed, weight in enumerate(module.parameters()):
        scale = 1 / math.sqrt(math.prod(weight.shape[1:])) if weight.dim() > 1 else 0.1
        weight.data = tiny.noise(tuple(weight.shape), seed, scale) + (weight.dim() == 1)
    return module.eval()


def _patcher(module: torch.nn.Module) -> Any:
    cpu = torch.device("cpu")
    return comfy.model_patcher.ModelPatcher(module, load_device=cpu, offload_device=cpu)


def _model(name: str, unet: dict[str, Any]) -> Any:
    config = getattr(comfy.supported_models, name)(dict(unet))
    config.set_inference_dtype(torch.float32, None)
    with torch.inference_mode(False):
        model = config.get_model({}, "", device=torch.device("cpu"))
        _fill(model.diffusion_model)
    return _patcher(model)


def _sample(
    model: Any, side: int, frames: tuple[int, ...], width: int, pooled: int = 0, cfg: float = 4.0
) -> torch.Tensor:
    latent = torch.zeros(1, 16, *frames, 8, side // 8)
    more = [{"pooled_output": tiny.noise((1, pooled), seed)} if pooled else {} for seed in (3, 4)]
    prompts = [[[tiny.noise((1, 20, width), seed), more[seed - 1]]] for seed in (1, 2)]
    noise = comfy.sample.prepare_noise(latent, 3)
    return comfy.sample.sample(model, noise, 4, cfg, "euler", "simple", *prompts, latent, seed=3, disable_pbar=True)


def _as_without_us(
    model: Any, twin: Any, put: Callable[[Any, int], Any], draw: Callable[[Any, int], Any], runs_live: bool = False
) -> Any:
    """``put(model, setting)`` puts a patch on a model. Returns the model's report: nothing was done block by block."""
    fast = fast_compile.apply(model)
    mine, theirs = ([made, put(made, 0), put(made, 1)] for made in (fast, twin))
    pictures = {}
    for setting, side in ((0, 64), (1, 64), (2, 64), (0, 64), (1, 64), (1, 96), (2, 64)):
        pictures[setting, side] = expected = draw(theirs[setting], side)
        assert_close(draw(mine[setting], side), expected)
    assert_differs(pictures[1, 64], pictures[0, 64])
    assert_differs(pictures[2, 64], pictures[1, 64])
    found, report = calls(model), report_of(model)
    assert found["fused"] > found["eager"] + found["traced"], (dict(found), report.text())
    assert any(signature.live for signature in report.signatures) == runs_live, report.text()
    assert not any("block of it" in reason or "can't be traced" in reason for reason in report.reasons), report.reasons
    return report


class _VAE:
    """As much of one as such a patch uses."""

    def spacial_compression_encode(self) -> int:
        """Pixels for a latent's one."""
        return 8

    def encode(self, image: torch.Tensor) -> torch.Tensor:
        """16 channels of a picture's three."""
        small = torch.nn.functional.interpolate(image.movedim(-1, 1), scale_factor=1 / 8)
        return torch.cat([small * (index + 1) for index in range(6)], dim=1)[:, :16]


def scenario_z_image_with_its_control_net() -> None:
    """Its blocks are followed by live code that changes their tokens in place; nothing runs as it was."""
    if not has("comfy.ldm.lumina.controlnet"):
        return
    from comfy.ldm.lumina.controlnet import ZImage_Control

    options = {"dim": 256, "n_heads": 2, "n_kv_heads": 2, "n_control_layers": 6, "operations": comfy.ops.manual_cast}
    controls = [_patcher(_fill(ZImage_Control(**options))) for _ in range(2)]
    model, twin = _model("ZImage", _LUMINA), _model("ZImage", _LUMINA)
    image = tiny.noise((1, 64, 64, 3), 9).sigmoid()

    def put(made: Any, setting: int) -> Any:
        own = controls[made.model is twin.model]
        return node("nodes_model_patch", "ZImageFunControlnet")(
            made, own, _VAE(), image=image, strength=1.0 - setting / 2
        )

    report = _as_without_us(model, twin, put, lambda made, side: _sample(made, side, (), 256), runs_live=True)
    assert not report.calls["eager"], report.reasons


def _lllite_names() -> dict[str, torch.Tensor]:
    found = {"lllite_conditioning1.conv1.weight": (16, 3, 4, 4), "lllite_conditioning1.conv3.weight": (32, 16, 4, 4)}
    found["lllite_conditioning1.proj.weight"] = (24, 32, 1, 1)
    for block in range(2):
        for layer in ("self_attn_q_proj", "self_attn_k_proj", "cross_attn_q_proj", "mlp_layer1"):
            found[f"lllite_dit_blocks_{block}_{layer}.down.weight"] = (16, 256)  # type: ignore[assignment]
            found[f"lllite_dit_blocks_{block}_{layer}.cond_to_film.weight"] = (32, 24)  # type: ignore[assignment]
    return {name: torch.empty(shape) for name, shape in found.items()}


def scenario_anima_with_lllite() -> None:
    """One hook leaves what it has computed in the model's options, for others at each layer: all are recorded."""
    if not has("comfy.ldm.anima.lllite"):
        return
    from comfy.ldm.anima.lllite import AnimaLLLite

    patches = [
        _patcher(_fill(AnimaLLLite(_lllite_names(), {}, torch.device("cpu"), torch.float32, comfy.ops.manual_cast)))
        for _ in range(2)
    ]
    model, twin = _model("Anima", _ANIMA), _model("Anima", _ANIMA)
    image = tiny.noise((1, 64, 64, 3), 9).sigmoid()

    def put(made: Any, setting: int) -> Any:
        own = patches[made.model is twin.model]
        return node("nodes_model_patch", "AnimaLLLiteApply")(made, own, image, 1.0, 0.0, 1.0 - setting / 2)

    report = _as_without_us(model, twin, put, lambda made, side: _sample(made, side, (1,), 1024))
    assert not report.calls["eager"], report.reasons


class _Vision:
    """What CLIP Vision says of a picture."""

    def __init__(self, seed: int) -> None:
        self.all_hidden_states = tiny.noise((1, 24, 9, 32), seed)
        self.penultimate_hidden_states = tiny.noise((1, 9, 32), seed + 1)


def scenario_flux_with_a_reference_of_style() -> None:
    """USO's tokens come of a network whose layers cast: recorded with the model, whose prompt is longer for them."""
    if not has("comfy_extras.nodes_model_patch"):
        return
    from comfy.ldm.flux.model import FluxParams
    from comfy_extras.nodes_model_patch import SigLIPMultiFeatProjModel

    patches = [
        _patcher(_fill(SigLIPMultiFeatProjModel(9, 4, 32, 256, operations=comfy.ops.manual_cast))) for _ in range(2)
    ]
    known = {"image_model", *(field.name for field in dataclasses.fields(FluxParams))}
    model, twin = (_model("Flux", {name: _FLUX[name] for name in _FLUX.keys() & known}) for _ in range(2))

    def put(made: Any, setting: int) -> Any:
        own = patches[made.model is twin.model]
        return node("nodes_model_patch", "USOStyleReference")(made, own, _Vision(5 + setting))

    report = _as_without_us(model, twin, put, lambda made, side: _sample(made, side, (), 64, 768, 1.0))
    assert not report.calls["eager"], report.reasons
