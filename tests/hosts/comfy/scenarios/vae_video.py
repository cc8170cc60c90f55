"""Autoencoders of videos that are built of GroupNorms and causal convolutions (HunyuanVideo's): whole, and in parts that
hand frames on.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import comfy.ldm.models.autoencoder
import comfy.ldm.modules.diffusionmodules.model as layers
import comfy.sd
import tiny
import torch
from driver import PACK, assert_close, fast_compile
from part_tools import assert_parts_fused, part_calls, reports, weights_for

LOWERING = importlib.import_module(".sfast_core.lowering", PACK.__name__)
OPS = ("norm_pad_video", "group_norm_affine", "group_norm_act")
CONFIG: dict[str, Any] = {"double_z": True, "z_channels": 16, "resolution": 64, "in_channels": 3, "out_ch": 3, "ch": 32}
CONFIG |= {"ch_mult": [1, 2, 2], "num_res_blocks": 1, "attn_resolutions": [], "dropout": 0.0, "conv3d": True}
CONFIG |= {"time_compress": 4}


@contextmanager
def _with_kernels() -> Iterator[None]:
    """The passes find those that videos have, for which their meaning stands here."""
    found = LOWERING.has_impl
    LOWERING.has_impl = lambda *_: lambda reference, *args: reference.__name__ in OPS
    try:
        yield
    finally:
        LOWERING.has_impl = found


def _vae() -> Any:
    """As Load VAE gives it, narrow."""
    config = {"params": {"ddconfig": CONFIG, "embed_dim": 16}}
    model = comfy.ldm.models.autoencoder.AutoencoderKL(**config["params"])
    vae = comfy.sd.VAE(sd=weights_for(model), config=config)
    vae.latent_dim, vae.latent_channels = 3, 16
    vae.upscale_ratio, vae.downscale_ratio = (
        (lambda frames: 4 * frames - 3, 4, 4),
        (lambda frames: frames // 4 + 1, 4, 4),
    )
    return vae


def scenario_norms_of_a_video_are_applied_where_frames_are_moved() -> None:
    if "conv_carry_in" not in inspect.signature(layers.ResnetBlock.forward).parameters:
        return  # an older ComfyUI decodes such a video otherwise
    with _with_kernels():
        plain, twin = _vae(), _vae()
        fast = fast_compile.apply_vae(plain)
        for _ in range(2):
            before = part_calls(plain.first_stage_model)
            for frames in (1, 3):
                latent = tiny.noise((1, 16, frames, 4, 6), frames)
                picture = twin.decode(latent)
                assert_close(fast.decode(latent), picture)
        assert_parts_fused(plain.first_stage_model, before)
        found = reports(plain.first_stage_model)["VAE decoder (AutoencoderKL)"]
        for signature in found.signatures:  # all but the attention's own, in each part of the video
            assert signature.passes["fuse_group_norm_act"] == 1 and not signature.live, signature.passes
            assert signature.passes["fuse_norm_pad_video"] >= 14, signature.passes
    assert torch.isfinite(picture).all() and not part_calls(plain.first_stage_model)["eager"]
