"""Nodes that bring something of their own beside the model: another model to merge with, a network that its hooks call."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import comfy.model_patcher
import comfy.ops
import comfy.sd
import torch
from driver import has, node

from random_workflows import loras, models
from random_workflows.control_nets import PictureVAE, filled
from random_workflows.models import Subject, noise

_CPU = torch.device("cpu")
_LOADED: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()


def _once(model: Any, key: Any, make: Callable[[], Any]) -> Any:
    """What a loader's node keeps beside this model."""
    kept = _LOADED.setdefault(model.model, {})
    if key not in kept:
        with torch.inference_mode(False):
            kept[key] = make()
    return kept[key]


def _other(model: Any, name: str, dtype: torch.dtype) -> Any:
    subject = Subject(name, models.FAMILIES[name], dtype, "")
    return _once(model, "another model", lambda: models.built(subject, 1))


def merged(model: Any, name: str, dtype: torch.dtype, how: str, ratio: float) -> Any:
    """A merge with another model of the family: whole, its first blocks alone, or by what it adds to a third."""
    merging = "nodes_model_merging"
    other = _other(model, name, dtype)
    if how == "whole":
        return node(merging, "ModelMergeSimple")(model, other, ratio)
    if how == "blocks":
        begins = {key.split(".")[0] + "." for key in model.model.diffusion_model.state_dict()}
        first = {begin: ratio for begin in sorted(begins)[::2]}
        return node(merging, "ModelMergeBlocks")(model, other, **first, **{"zzz": 0.0})
    return node(merging, "ModelAdd")(model, node(merging, "ModelSubtract")(other, model, ratio))


def bypassed(model: Any, *drawn: Any) -> Any:
    """Load LoRA (Bypass): its products are added to the layers' results."""
    *which, strength = drawn
    return comfy.sd.load_bypass_lora_for_models(model, None, loras.file(model, *which), strength, 0.0)[0]


def hypernetwork(model: Any, seed: int, activation: str, norms: bool, strength: float) -> Any:
    """Load Hypernetwork: a small network in front of the keys and values of every attention."""
    from comfy_extras.nodes_hypernetwork import load_hypernetwork_patch

    width = model.model.diffusion_model.input_blocks[1][1].in_channels
    found: dict[Any, Any] = {"activation_func": activation, "is_layer_norm": norms}
    for dim in (width, 2 * width):
        found[dim] = [_network(dim, seed + part, norms) for part in (0, 2)]
    with tempfile.TemporaryDirectory() as folder:
        torch.save(found, Path(folder) / "hypernetwork.pt")
        patch = load_hypernetwork_patch(str(Path(folder) / "hypernetwork.pt"), strength)
    model = model.clone()
    model.set_model_attn1_patch(patch)
    model.set_model_attn2_patch(patch)
    return model


def _network(dim: int, seed: int, norms: bool) -> dict[str, torch.Tensor]:
    found = {}
    for number, (rows, columns) in enumerate(((2 * dim, dim), (dim, 2 * dim))):
        at = number * (2 if norms else 1)
        found[f"linear.{at}.weight"] = noise(rows, columns)(seed + number) / columns**0.5
        found[f"linear.{at}.bias"] = noise(rows)(seed + number) * 0.1
        if norms:
            found[f"linear.{at + 1}.weight"], found[f"linear.{at + 1}.bias"] = (
                1 + noise(rows)(seed) * 0.1,
                noise(rows)(seed) * 0.1,
            )
    return found  # fmt: skip


def _patcher(module: torch.nn.Module) -> Any:
    return comfy.model_patcher.ModelPatcher(filled(module), load_device=_CPU, offload_device=_CPU)


def _picture(seed: int) -> torch.Tensor:
    return noise(1, 128, 128, 3)(seed).sigmoid()


def diff_synth(model: Any, seed: int, strength: float, masked: bool) -> Any:
    """Qwen-Image's ControlNet of DiffSynth: a network behind each block."""
    from comfy_extras.nodes_model_patch import QwenImageBlockWiseControlNet

    inside = model.model.diffusion_model
    sizes = {
        "num_layers": len(inside.transformer_blocks),
        "additional_in_dim": 4 if masked else 0,
        "dim": inside.inner_dim,
    }
    own = _once(
        model,
        ("DiffSynth", masked),
        lambda: _patcher(QwenImageBlockWiseControlNet(**sizes, operations=comfy.ops.manual_cast)),
    )
    mask = (noise(1, 128, 128)(seed) > 0).float() if masked else None
    return node("nodes_model_patch", "QwenImageDiffsynthControlnet")(
        model, own, PictureVAE(True), _picture(seed), strength, mask=mask
    )


def z_image_control(model: Any, seed: int, strength: float) -> Any:
    """Z-Image's Fun ControlNet, which keeps what it has computed from block to block."""
    from comfy.ldm.lumina.controlnet import ZImage_Control

    inside = model.model.diffusion_model
    sizes = {"dim": inside.dim, "n_heads": inside.n_heads, "n_kv_heads": inside.n_heads, "n_control_layers": 6}
    own = _once(model, "Fun ControlNet", lambda: _patcher(ZImage_Control(**sizes, operations=comfy.ops.manual_cast)))
    return node("nodes_model_patch", "ZImageFunControlnet")(
        model, own, PictureVAE(), image=_picture(seed), strength=strength
    )


class _FramesVAE(PictureVAE):
    """A video's, as much of it as Uni3C uses."""

    def temporal_compression_decode(self) -> int:
        """Pictures for a frame of the latent, but the first."""
        return 4

    def encode(self, image: torch.Tensor) -> torch.Tensor:
        """A latent of the pictures' size."""
        frames, height, width, _ = image.shape
        return noise(1, 16, (frames + 3) // 4, height // 8, width // 8)(round(float(image.mean()) * 100))


def uni3c(model: Any, seed: int, strength: float, start: float, end: float) -> Any:
    """Wan's Uni3C, a network behind each block that goes on from block to block and asks for the step."""
    from comfy.ldm.wan.uni3c import WanUni3CControlnet

    width = model.model.diffusion_model.dim
    sizes = {"conv_out_dim": 64, "dim": 48, "ffn_dim": 96, "num_heads": 2, "num_layers": 2, "mid_channels": 16}
    sizes |= {"time_embed_dim": width, "out_proj_dim": width}
    own = _once(model, "Uni3C", lambda: _patcher(WanUni3CControlnet(**sizes, operations=comfy.ops.manual_cast)))
    video = noise(9, 64, 64, 3)(seed).sigmoid()
    return node("nodes_model_patch", "WanUni3CControlnetApply")(model, own, _FramesVAE(), video, strength, start, end)


class _Vision:
    """What CLIP Vision says of a picture."""

    def __init__(self, seed: int) -> None:
        self.all_hidden_states = noise(1, 24, 9, 32)(seed)
        self.penultimate_hidden_states = noise(1, 9, 32)(seed + 1)


def style_of(model: Any, seed: int) -> Any:
    """USO's reference of style: more tokens of a prompt."""
    from comfy_extras.nodes_model_patch import SigLIPMultiFeatProjModel

    width = model.model.diffusion_model.hidden_size
    own = _once(
        model, "USO", lambda: _patcher(SigLIPMultiFeatProjModel(9, 4, 32, width, operations=comfy.ops.manual_cast))
    )
    return node("nodes_model_patch", "USOStyleReference")(model, own, _Vision(seed))


def draw_merge(plan: random.Random, subject: Subject) -> tuple[Any, ...]:
    """Values of :func:`merged`."""
    return subject.name, subject.dtype, plan.choice(("whole", "blocks", "difference")), plan.choice((0.3, 0.5, 1.0))


def has_patches(*modules: str) -> bool:
    """Whether this version has model patches of these kinds."""
    return all(map(has, ("comfy_extras.nodes_model_patch", *modules)))
