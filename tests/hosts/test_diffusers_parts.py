"""Pipelines whose models have other names, and autoencoders that keep frames from call to call: compiled as they are,
or named with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

diffusers = pytest.importorskip("diffusers")
transformers = pytest.importorskip("transformers")

import sfast_core  # noqa: E402
from tests.hosts import diffusers_pipelines as tiny  # noqa: E402
from tests.hosts.diffusers_checks import CONFIG, assert_fused, compiled, distance, reports  # noqa: E402

WAN = {
    "base_dim": 8,
    "z_dim": 4,
    "dim_mult": [1, 1, 2],
    "num_res_blocks": 1,
    "attn_scales": [],
    "temperal_downsample": [False, True],
}
WAN |= {"latents_mean": [0.0] * 4, "latents_std": [1.0] * 4}
CACHED: dict[str, Callable[[], Any]] = {
    "AutoencoderKLWan": lambda: diffusers.AutoencoderKLWan(**WAN),
    "AutoencoderKLQwenImage": lambda: diffusers.AutoencoderKLQwenImage(**WAN),
    "AutoencoderKLCogVideoX": lambda: diffusers.AutoencoderKLCogVideoX(
        down_block_types=("CogVideoXDownBlock3D",) * 3,
        up_block_types=("CogVideoXUpBlock3D",) * 3,
        block_out_channels=(8, 8, 8),
        latent_channels=4,
        layers_per_block=1,
        norm_num_groups=2,
        temporal_compression_ratio=4,
    ),
    "AutoencoderKLMochi": lambda: diffusers.AutoencoderKLMochi(
        encoder_block_out_channels=(32, 32, 32, 32),
        decoder_block_out_channels=(32, 32, 32, 32),
        latent_channels=4,
        layers_per_block=(1, 1, 1, 1, 1),
        temporal_expansions=(1, 2, 3),
        spatial_expansions=(2, 2, 2),
        latents_mean=[0.0] * 4,
        latents_std=[1.0] * 4,
    ),
}
UNCACHED: dict[str, Callable[[], Any]] = {
    "AutoencoderKLHunyuanVideo": lambda: diffusers.AutoencoderKLHunyuanVideo(
        down_block_types=("HunyuanVideoDownBlock3D",) * 4,
        up_block_types=("HunyuanVideoUpBlock3D",) * 4,
        block_out_channels=(8, 8, 8, 8),
        latent_channels=4,
        layers_per_block=1,
        norm_num_groups=4,
    ),
    "AutoencoderKLLTXVideo": lambda: diffusers.AutoencoderKLLTXVideo(
        latent_channels=8,
        block_out_channels=(8, 8, 8, 8),
        decoder_block_out_channels=(8, 8, 8, 8),
        layers_per_block=(1, 1, 1, 1, 1),
        decoder_layers_per_block=(1, 1, 1, 1, 1),
        patch_size=1,
        encoder_causal=True,
        decoder_causal=False,
    ),
}


class Video(diffusers.DiffusionPipeline):  # type: ignore[name-defined, misc]
    """Holds an autoencoder."""

    def __init__(self, vae: Any) -> None:
        super().__init__()
        self.register_modules(vae=vae)


def twins(make: Callable[[], Any]) -> tuple[Any, Any]:
    """A pipeline that is compiled and one that isn't, with the same weights."""
    torch.manual_seed(0)
    slow = make().eval()
    model = make().eval()
    model.load_state_dict(slow.state_dict())
    return sfast_core.compile_pipeline(Video(model), CONFIG), Video(slow)


def both(fast: Any, slow: Any, call: Callable[[Any], torch.Tensor]) -> torch.Tensor:
    """What a compiled autoencoder gives, which is near to what the other gives: relative L2."""
    with torch.no_grad():
        mine, theirs = call(fast.vae), call(slow.vae)
    assert mine.shape == theirs.shape
    assert float((mine - theirs).norm() / theirs.norm()) < 1e-5
    return theirs


def decode(z: torch.Tensor) -> Callable[[Any], torch.Tensor]:
    return lambda vae: vae.decode(z).sample


def encode(x: torch.Tensor) -> Callable[[Any], torch.Tensor]:
    return lambda vae: vae.encode(x).latent_dist.mode()


@pytest.mark.parametrize("name", [*CACHED, *UNCACHED])
def test_videos_of_several_lengths_are_decoded_and_encoded_as_ever(name: str) -> None:
    """One after another: what a call leaves in a cache of frames is not the next video's."""
    fast, slow = twins({**CACHED, **UNCACHED}[name])
    channels = 8 if "LTX" in name else 4
    for _ in range(2):
        for frames in (3, 2, 1):
            video = both(fast, slow, decode(torch.randn(1, channels, frames, 4, 4)))
            both(fast, slow, encode(video.clamp(-1, 1)))
    found = reports(fast)
    for half in ("vae.decoder", "vae.encoder"):
        assert found[half].calls["fused"] and not found[half].reasons, found[half].text()


@pytest.mark.parametrize("name", ["AutoencoderKLWan", "AutoencoderKLQwenImage"])
def test_tiles_of_a_video(name: str) -> None:
    fast, slow = twins(CACHED[name])
    z = torch.randn(1, 4, 2, 12, 12)
    whole = both(fast, slow, decode(z))
    for pipeline in (fast, slow):
        pipeline.vae.enable_tiling(
            tile_sample_min_height=32,
            tile_sample_min_width=32,
            tile_sample_stride_height=24,
            tile_sample_stride_width=24,
        )
    for _ in range(2):
        both(fast, slow, decode(z))
        both(fast, slow, encode(whole.clamp(-1, 1)))
    assert reports(fast)["vae.decoder"].calls["fused"] and not reports(fast)["vae.decoder"].reasons


def kandinsky() -> Any:
    """A pipeline whose autoencoder is called movq."""
    torch.manual_seed(0)
    sizes = {"block_out_channels": (32, 64), "norm_num_groups": 8, "layers_per_block": 1}
    unet = diffusers.UNet2DConditionModel(
        in_channels=4,
        out_channels=8,
        addition_embed_type="image",
        down_block_types=("ResnetDownsampleBlock2D", "SimpleCrossAttnDownBlock2D"),
        up_block_types=("SimpleCrossAttnUpBlock2D", "ResnetUpsampleBlock2D"),
        mid_block_type="UNetMidBlock2DSimpleCrossAttn",
        encoder_hid_dim=32,
        encoder_hid_dim_type="image_proj",
        cross_attention_dim=32,
        attention_head_dim=4,
        resnet_time_scale_shift="scale_shift",
        **sizes,
    ).eval()
    torch.manual_seed(1)
    blocks = {
        "down_block_types": ("DownEncoderBlock2D", "AttnDownEncoderBlock2D"),
        "up_block_types": ("AttnUpDecoderBlock2D", "UpDecoderBlock2D"),
    }
    movq = diffusers.VQModel(
        block_out_channels=(32, 64),
        norm_num_groups=8,
        latent_channels=4,
        vq_embed_dim=4,
        num_vq_embeddings=12,
        norm_type="spatial",
        **blocks,
    )
    scheduler = diffusers.DDIMScheduler(
        beta_schedule="linear", clip_sample=False, set_alpha_to_one=False, steps_offset=1, prediction_type="epsilon"
    )
    return tiny.quiet(diffusers.KandinskyV22Pipeline(unet=unet, scheduler=scheduler, movq=movq.eval()))


def test_an_autoencoder_by_another_name() -> None:
    twin, fast = kandinsky(), compiled(kandinsky())
    embeds = {"image_embeds": torch.randn(1, 32), "negative_image_embeds": torch.zeros(1, 32)}

    def draw(pipeline: Any) -> Any:
        more = {
            "height": 64,
            "width": 64,
            "num_inference_steps": 2,
            "output_type": "np",
            "generator": torch.Generator().manual_seed(0),
        }
        return pipeline(**embeds, **more).images

    for _ in range(2):
        assert distance(draw(fast), draw(twin)) < 3e-3  # these random weights are steep: each half is 2e-6 from eager's
    assert set(reports(fast)) == {"unet", "movq.encoder", "movq.decoder"}
    assert_fused(fast, unet="fuse_group_norm_act", **{"movq.decoder": "fuse_conv_act"})


class Many(diffusers.DiffusionPipeline):  # type: ignore[name-defined, misc]
    """Names models as many pipelines do."""

    def __init__(self, **models: Any) -> None:
        super().__init__()
        self.register_modules(**models)


class DecodesItself(torch.nn.Module):
    """An autoencoder without halves."""

    def decode(self, z: torch.Tensor) -> torch.Tensor:
        return z * 2


def test_every_model_is_compiled_or_named_with_the_reason() -> None:
    linear = torch.nn.Linear
    models = {
        "prior": linear(4, 4),
        "decoder": linear(4, 4),
        "image_encoder": linear(4, 4),
        "adapter": linear(4, 4),
        "transformer_2": linear(4, 4),
    }
    others = {
        "vqgan": DecodesItself(),
        "safety_checker": linear(4, 4),
        "script": torch.jit.script(linear(4, 4)),
        "container": torch.nn.Module(),
    }
    fast = compiled(Many(**models, **others))
    x = torch.randn(2, 4)
    with torch.no_grad():
        for name, model in models.items():
            assert getattr(fast, name)(x).equal(model(x)) and reports(fast)[name].calls["traced"] == 1
    left_out = {name: report.left_out for name, report in reports(fast).items() if report.left_out}
    assert left_out.keys() == others.keys()
    text = fast.report().text()
    assert "safety_checker is left out: it looks at pictures on the CPU, once" in text
    assert "vqgan is left out: what decodes is a method of its own, and neither its forward nor a decoder's" in text
