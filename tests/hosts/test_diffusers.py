"""diffusers pipelines: the same pictures as an uncompiled twin's, whatever is done to the models."""

from __future__ import annotations

from typing import Any

import pytest
import torch

diffusers = pytest.importorskip("diffusers")
pytest.importorskip("transformers")

from tests.hosts import diffusers_pipelines as tiny  # noqa: E402
from tests.hosts.diffusers_checks import (  # noqa: E402
    DECODER,
    DENOISER,
    NEAR,
    TEXT,
    UNET,
    Step,
    assert_fused,
    assert_never_stale,
    assert_same_pictures,
    compiled,
    distance,
    reports,
)
from tests.hosts.diffusers_pipelines import picture  # noqa: E402

SCHEDULERS = ("DDIMScheduler", "EulerDiscreteScheduler", "DPMSolverMultistepScheduler", "UniPCMultistepScheduler")


# all others here are of the first
@pytest.mark.parametrize("kind", [pytest.param("sd", marks=pytest.mark.slow), "sdxl"])
def test_each_scheduler_gives_the_same_picture(kind: str) -> None:
    twin, fast = getattr(tiny, kind)(), compiled(getattr(tiny, kind)())
    drawn = []
    for name in SCHEDULERS:
        for pipeline in (twin, fast):
            pipeline.scheduler = getattr(diffusers, name).from_config(pipeline.scheduler.config)
        assert fast.pipeline.scheduler is fast.scheduler
        drawn.append(assert_same_pictures(fast, twin, num_inference_steps=4))
    assert min(distance(a, b) for i, a in enumerate(drawn) for b in drawn[:i]) > 10 * NEAR
    assert distance(picture(fast, prompt="blue owl", num_inference_steps=4), drawn[-1]) > 10 * NEAR
    more = {"text_encoder_2": TEXT} if kind == "sdxl" else {}
    assert_fused(fast, unet=UNET, text_encoder=TEXT, vae_decoder=DECODER, **more)
    assert not reports(fast)["vae.encoder"].calls
    text = fast.report().text()
    assert all(name in text for name in ("unet on cpu", "vae.decoder on cpu", "text_encoder on cpu", "fuse_attention"))


@pytest.mark.parametrize("kind", ["sd3", "flux"])
def test_transformers_and_t5(kind: str) -> None:
    twin, fast = getattr(tiny, kind)(), compiled(getattr(tiny, kind)())
    assert_same_pictures(fast, twin, max_sequence_length=12)
    names = ["text_encoder", "text_encoder_2", "text_encoder_3"][: 3 if kind == "sd3" else 2]
    assert_fused(fast, transformer=DENOISER, vae_decoder=DECODER, **dict.fromkeys(names, "fuse_attention pack_qkv"))


def test_image_to_image_encodes_with_the_compiled_encoder() -> None:
    twin, fast = (tiny.sd(diffusers.StableDiffusionImg2ImgPipeline) for _ in range(2))
    fast = compiled(fast)
    weak, strong = (
        assert_same_pictures(fast, twin, image=tiny.noise_picture(), strength=s, num_inference_steps=4)
        for s in (0.3, 0.9)
    )
    assert distance(weak, strong) > 10 * NEAR
    assert_fused(fast, unet=UNET, vae_encoder=DECODER, vae_decoder=DECODER)


@pytest.mark.parametrize("count", [1, 2])
def test_controlnets(count: int) -> None:
    twin, fast = tiny.controlled(count), compiled(tiny.controlled(count))
    image = [tiny.noise_picture()] * count if count > 1 else tiny.noise_picture()
    drawn = []
    for scale in (1.0, 0.3):
        scales = [scale] * count if count > 1 else scale
        drawn.append(assert_same_pictures(fast, twin, image=image, controlnet_conditioning_scale=scales))
    drawn.append(assert_same_pictures(fast, twin, image=image, control_guidance_end=0.5))
    assert min(distance(a, b) for i, a in enumerate(drawn) for b in drawn[:i]) > 10 * NEAR
    names = ["controlnet"] if count == 1 else ["controlnet.nets.0", "controlnet.nets.1"]
    assert_fused(fast, unet=UNET, **dict.fromkeys(names, "fuse_group_norm_act fuse_attention pack_embedding"))


def test_batches_resolutions_and_guidance() -> None:
    twin, fast = tiny.sd(), compiled(tiny.sd())
    several: tuple[dict[str, Any], ...] = (
        {"height": 48, "width": 32},
        {"num_images_per_prompt": 3},
        {"prompt": ["red fox", "blue owl"]},
        {"guidance_scale": 1.0},
        {"guidance_rescale": 0.7},
    )
    for settings in (*several, {}, several[0]):
        assert_same_pictures(fast, twin, **settings)
    assert_fused(fast, unet=UNET, text_encoder=TEXT, vae_decoder=DECODER)
    assert len(reports(fast)["unet"].signatures) == reports(fast)["unet"].calls["traced"]  # nothing was traced twice


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_loras_come_change_and_go() -> None:
    pytest.importorskip("peft")
    twin, fast = tiny.sd(), compiled(tiny.sd())
    first, second = (tiny.lora(twin, seed) for seed in (5, 6))
    steps: list[tuple[str, Step]] = [
        ("load", lambda p: p.load_lora_weights(dict(first), adapter_name="first")),
        ("weaker", lambda p: p.set_adapters(["first"], [0.4])),
        ("load another", lambda p: p.load_lora_weights(dict(second), adapter_name="second")),
        ("both", lambda p: p.set_adapters(["first", "second"], [0.7, 0.3])),
        ("off", lambda p: p.disable_lora()),
        ("on", lambda p: p.enable_lora()),
        ("fuse*", lambda p: p.fuse_lora()),
        ("unfuse*", lambda p: p.unfuse_lora()),
        ("delete", lambda p: p.delete_adapters("second")),
        ("fuse half", lambda p: p.fuse_lora(lora_scale=0.5)),
        ("unload", lambda p: (p.unfuse_lora(), p.unload_lora_weights())),
    ]
    assert_never_stale(steps, twin, fast)
    twin.load_lora_weights(dict(first))
    fast.load_lora_weights(dict(first))
    full, half = (assert_same_pictures(fast, twin, cross_attention_kwargs={"scale": scale}) for scale in (1.0, 0.5))
    assert distance(full, half) > 10 * NEAR
    assert_fused(fast, unet="fuse_attention", text_encoder="fuse_attention")


def test_attention_processors_and_switches_of_the_unet() -> None:
    from diffusers.models.attention_processor import AttnProcessor

    class Weaker(AttnProcessor):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return super().__call__(*args, **kwargs) * 0.1

    twin, fast = tiny.sd(), compiled(tiny.sd())
    steps: list[tuple[str, Step]] = [
        ("written out*", lambda p: p.unet.set_attn_processor(AttnProcessor())),
        ("weaker", lambda p: p.unet.set_attn_processor(Weaker())),
        ("back", lambda p: p.unet.set_attn_processor(AttnProcessor())),
        ("FreeU", lambda p: p.enable_freeu(0.9, 0.2, 1.5, 1.6)),
        ("no FreeU", lambda p: p.disable_freeu()),
        ("slices*", lambda p: p.enable_attention_slicing()),
        ("one QKV layer*", lambda p: (p.disable_attention_slicing(), p.fuse_qkv_projections())),
    ]
    assert_never_stale(steps, twin, fast)
    assert_fused(fast, unet="fuse_group_norm_act", vae_decoder=DECODER)


def test_a_cache_from_step_to_step_runs_as_it_was() -> None:
    """Which steps compute attention and which repeat what was computed is in its hooks, not in the arguments."""
    cache = pytest.importorskip("diffusers.hooks").PyramidAttentionBroadcastConfig
    asked = {
        "spatial_attention_block_skip_range": 2,
        "spatial_attention_timestep_skip_range": (0, 1000),
        "current_timestep_callback": lambda: 500,
    }
    twin, fast = tiny.flux(), compiled(tiny.flux())
    steps: list[tuple[str, Step]] = [
        ("on", lambda p: p.transformer.enable_cache(cache(**asked))),
        ("off", lambda p: p.transformer.disable_cache()),
    ]
    assert_never_stale(steps, twin, fast, num_inference_steps=6, max_sequence_length=12)
    report = reports(fast)["transformer"]
    assert report.calls["fused"] and all(
        "keeps state from step to step" in reason or ".state." in reason for reason in report.reasons
    ), report.text()


def test_the_scale_of_an_ip_adapter() -> None:
    twin, fast = tiny.sd(), compiled(tiny.sd())
    for pipeline in (twin, fast):
        pipeline.load_ip_adapter(tiny.ip_adapter(pipeline), subfolder="", weight_name="", image_encoder_folder=None)
    embeddings = [torch.randn(2, 1, 24, generator=torch.Generator().manual_seed(0))]
    steps: list[tuple[str, Step]] = [
        (f"scale {scale}", lambda p, s=scale: p.set_ip_adapter_scale(s)) for scale in (0.5, 0.0, 0.8)
    ]
    assert_never_stale(steps, twin, fast, ip_adapter_image_embeds=embeddings)
    for pipeline in (twin, fast):
        pipeline.unload_ip_adapter()
    assert_same_pictures(fast, twin)


def test_slices_and_tiles_of_the_vae() -> None:
    twin, fast = tiny.sd(), compiled(tiny.sd())
    steps: list[tuple[str, Step]] = [
        ("slices*", lambda p: p.vae.enable_slicing()),
        ("tiles", lambda p: p.vae.enable_tiling()),
        ("whole", lambda p: p.vae.disable_tiling()),
    ]
    assert_never_stale(steps, twin, fast, height=80, width=48, num_images_per_prompt=2)
    assert_fused(fast, vae_decoder=DECODER)


def test_another_dtype_after_compiling() -> None:
    twin, fast = tiny.sd(), compiled(tiny.sd())
    single = assert_same_pictures(fast, twin)
    assert fast.to(torch.float64) is fast and fast.unet.dtype == torch.float64
    assert_same_pictures(fast, twin.to(torch.float64))
    fast.to(torch.bfloat16)
    half = picture(twin.to(torch.bfloat16))
    # a bfloat16 in 0.5..1 is exact to 0.004
    assert distance(picture(fast), half) < 0.03 and distance(picture(fast), half) < 0.03
    assert distance(half, single) > 10 * NEAR
    tokens = torch.ones(1, tiny.TOKENS, dtype=torch.int64)
    with torch.no_grad():  # its inputs are the same in every dtype
        for dtype in (torch.bfloat16, torch.float32, torch.bfloat16):
            assert fast.text_encoder.to(dtype)(tokens).last_hidden_state.dtype == dtype
            assert fast.text_encoder(tokens)[0].dtype == dtype
    fast.to(torch.float32)
    assert_same_pictures(fast, twin.to(torch.float32))
    assert_fused(fast, unet=UNET, text_encoder=TEXT, vae_decoder=DECODER)
