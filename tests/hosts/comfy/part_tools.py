"""Small VAEs, text encoders and ControlNets, and what became of their calls. Needs the driver."""

from __future__ import annotations

import importlib
import inspect
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import comfy.cldm.cldm
import comfy.controlnet
import comfy.ldm.models.autoencoder
import comfy.ops
import comfy.sd
import comfy.sd1_clip
import comfy.sdxl_clip
import tiny
import torch
from driver import PACK, fast_compile, has
from scenario_tools import fake_graphs

ENGINE = importlib.import_module(".sfast_core.engine", PACK.__name__)
_KL = {
    "double_z": True,
    "z_channels": 4,
    "resolution": 64,
    "in_channels": 3,
    "out_ch": 3,
    "ch": 32,
    "ch_mult": [1, 2, 2, 2],
}
_KL |= {"num_res_blocks": 1, "attn_resolutions": [], "dropout": 0.0}
_ENCODERS = "comfy.text_encoders."
_TEXT = {"num_hidden_layers": 3, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2}


def weights_for(model: torch.nn.Module, dtype: torch.dtype = torch.float32, seed: int = 0) -> dict[str, torch.Tensor]:
    """Weights for every name of a module, for its norms too, other ones with another seed."""
    shapes = model.state_dict()
    weights = tiny.fill(shapes, dtype)
    for number, name in enumerate(shapes):
        if name.endswith(("norm.weight", "norm_out.weight")) or ".norm" in name and name.endswith(".weight"):
            weights[name] = (1 + tiny.noise(tuple(shapes[name].shape), number, 0.1)).to(dtype)
        elif seed and shapes[name].dim() > 1 and "position_ids" not in name:
            weights[name] = weights[name].roll(seed)
    return weights


def vae(seed: int = 0) -> Any:
    """An AutoencoderKL as Load VAE gives it, with 32 channels."""
    config = {"params": {"ddconfig": _KL, "embed_dim": 4}}
    return comfy.sd.VAE(
        sd=weights_for(comfy.ldm.models.autoencoder.AutoencoderKL(**config["params"]), seed=seed), config=config
    )


def tiny_autoencoder() -> Any:
    """A TAESD as Load VAE gives it."""
    weights = tiny.text_and_image()
    start = "first_stage_model."
    return comfy.sd.VAE(sd={name[len(start) :]: value for name, value in weights.items() if name.startswith(start)})


def has_video_vae() -> bool:
    """Whether this version knows more than one width of Wan's VAE. With an older one's everything takes minutes."""
    from comfy.ldm.wan.vae import WanVAE

    return "image_channels" in inspect.signature(WanVAE).parameters


def video_vae() -> Any:
    """Wan 2.1's, as Load VAE gives it, with 8 channels: it keeps frames from call to call in lists."""
    from comfy.ldm.wan.vae import WanVAE

    sizes = {"dim": 8, "z_dim": 16, "dim_mult": [1, 2, 4, 4], "num_res_blocks": 2, "attn_scales": [], "dropout": 0.0}
    sizes |= {"temperal_downsample": [False, True, True], "image_channels": 3, "conv_out_channels": 3}
    taken = inspect.signature(WanVAE).parameters  # older versions take fewer
    return comfy.sd.VAE(sd=weights_for(WanVAE(**{name: size for name, size in sizes.items() if name in taken})))


def language_models() -> dict[str, Callable[[], Any]]:
    """Makes a CLIP object of each language model that this version has, with three layers of 64 channels."""
    kinds = {"lumina2": "gemma2_2b", "qwen_image": "qwen25_7b", "z_image": "qwen3_4b"}
    made = {name: partial(_language_model, name, config) for name, config in kinds.items() if has(_ENCODERS + name)}
    if hasattr(importlib.import_module(f"{_ENCODERS}flux"), "klein_te"):  # newer than 0.8
        made["flux"] = partial(_language_model, "flux", "qwen3_4b")
    return made


def _language_model(name: str, config: str) -> Any:
    module = importlib.import_module(_ENCODERS + name)
    encoder = module.klein_te(model_type=config) if name == "flux" else module.te()
    small = {**_TEXT, "num_key_value_heads": 1, "vocab_size": 300}
    made = text_encoders(encoder, lambda **_: None, **{f"{config}_model_config": small})
    if name == "flux":  # it takes layers that a small one hasn't
        inner = getattr(made.cond_stage_model, made.cond_stage_model.clip)
        inner.layer, inner.options_default = [0, 1, 2], ([0, 1, 2], None, True)
    return made


def encode_length(clip_object: Any, length: int) -> torch.Tensor:
    """What a language model makes of a prompt of so many tokens."""
    tokens = [((7 * place + length) % 290 + 5, 1.0) for place in range(length)]
    found: torch.Tensor = clip_object.encode_from_tokens({clip_object.cond_stage_model.clip_name: [tokens]})
    return found


class _Target:
    params: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self, clip: Any, tokenizer: Any) -> None:
        self.clip, self.tokenizer = clip, tokenizer


def text_encoders(model: Any, tokenizer: Any, **options: Any) -> Any:
    """A CLIP object of this class of encoders, with random weights in the dtype that the host chooses."""
    made = comfy.sd.CLIP(_Target(model, tokenizer), model_options=options)
    inner = made.cond_stage_model
    dtypes = {name: value.dtype for name, value in inner.state_dict().items()}
    inner.load_state_dict({name: value.to(dtypes[name]) for name, value in weights_for(inner).items()}, strict=False)
    return made


def clip(family: str = "sd15") -> Any:
    """The text encoders of SD1.5 or SDXL with three layers of 64 channels."""
    options = {"clip_l_model_config": _TEXT, "clip_g_model_config": {**_TEXT, "hidden_size": 96}}
    if family == "sdxl":
        return text_encoders(comfy.sdxl_clip.SDXLClipModel, comfy.sdxl_clip.SDXLTokenizer, **options)
    return text_encoders(comfy.sd1_clip.SD1ClipModel, comfy.sd1_clip.SD1Tokenizer, **options)


def encode(clip_object: Any, text: str) -> tuple[torch.Tensor, torch.Tensor]:
    """What the node CLIP Text Encode computes: the prompt's tokens and its pooled vector."""
    cond, pooled = clip_object.encode_from_tokens(clip_object.tokenize(text), return_pooled=True)
    return cond, pooled


def control_net(union: int | None = None) -> Any:
    """A ControlNet for the small SD1.5, as Load ControlNet gives it. ``union``: for so many kinds of pictures."""
    if union is None:
        return comfy.controlnet.load_controlnet_state_dict(tiny.control_net())
    sizes = {
        name: value
        for name, value in tiny.UNETS["sd15"].items()
        if name not in ("out_channels", "transformer_depth_output")
    }
    build = {
        "hint_channels": 3,
        "union_controlnet_num_control_type": union,
        "operations": comfy.ops.disable_weight_init,
    }
    model = comfy.cldm.cldm.ControlNet(**sizes, **build, dtype=torch.float32)
    model.load_state_dict(weights_for(model))
    return comfy.controlnet.ControlNet(model, load_device=torch.device("cpu"))


def reports(owner: Any) -> dict[str, Any]:
    """The reports of the parts of a VAE, CLIP object or ControlNet, by name, from their model."""
    return {
        state.engine.report.name: state.engine.report for state in fast_compile.states() if state.base_model() is owner
    }


def part_calls(owner: Any) -> Counter[str]:
    """The calls of all its parts by path, and the reasons of those that ran eager."""
    found: Counter[str] = Counter()
    for report in reports(owner).values():
        found.update(report.calls)
        found.update({f"because {reason}": count for reason, count in report.reasons.items()})
    return found


def assert_parts_fused(owner: Any, before: Counter[str] | None = None, traced: bool = False) -> None:
    """All calls since ``before`` ran fused, or were the first of their shapes where ``traced`` says so."""
    since = part_calls(owner) - (before or Counter())
    assert since["fused"] and not since["eager"] and (traced or not since["traced"]), dict(since)


def assert_parts_eager(owner: Any, word: str, before: Counter[str] | None = None) -> None:
    """All calls since ``before`` ran as they were, for a reason that holds ``word``."""
    since = part_calls(owner) - (before or Counter())
    reasons = [reason for reason in since if reason.startswith("because")]
    assert since["eager"] and not since["fused"] and not since["traced"], dict(since)
    assert reasons and all(word in reason for reason in reasons), reasons


def assert_refused(apply: Callable[[], Any], name: str) -> None:
    """It raises one TypeError, which names the argument."""
    try:
        apply()
    except TypeError as error:
        assert str(error).startswith(name), error
    else:
        raise AssertionError(f"{name} it was taken")


class Capturing:
    """Every engine captures into graphs that are emulated: ``with Capturing() as graphs``."""

    def __enter__(self) -> Any:
        graphs, lower = fake_graphs(), ENGINE.lower

        def capturable(*args: Any, **kwargs: Any) -> Any:
            program = lower(*args, **kwargs)
            object.__setattr__(program, "capturable", None)
            return program

        self._patches = [
            patch.object(ENGINE, "device_graphs", lambda device: graphs),
            patch.object(ENGINE, "lower", capturable),
        ]
        for one in self._patches:
            one.start()
        return graphs

    def __exit__(self, *_: Any) -> None:
        for one in self._patches:
            one.stop()
