"""diffusers pipelines: the same pictures as an uncompiled twin's, whatever is done to the pipeline, and back again."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

diffusers = pytest.importorskip("diffusers")
pytest.importorskip("transformers")

import sfast_core  # noqa: E402
from sfast_core import CompileConfig  # noqa: E402
from tests.hosts import diffusers_pipelines as tiny  # noqa: E402
from tests.hosts.diffusers_pipelines import picture  # noqa: E402

CONFIG = CompileConfig(allow_cpu=True)
NEAR = 1e-4  # of 0..1, in float32: a hundred times what rounding differs by, and far below what any change of the inputs makes
SCHEDULERS = ("DDIMScheduler", "EulerDiscreteScheduler", "DPMSolverMultistepScheduler", "UniPCMultistepScheduler")
Step = Callable[[Any], object]


def compiled(pipeline: Any) -> Any:
    return sfast_core.compile_pipeline(pipeline, CONFIG)


def distance(a: np.ndarray, b: np.ndarray) -> float:
    assert a.shape == b.shape and np.isfinite(a).all() and np.isfinite(b).all()
    return float(np.abs(a - b).max())


def assert_same_pictures(fast: Any, twin: Any, **settings: Any) -> np.ndarray:
    """The first call may trace, the second runs fused. Returns the twin's picture."""
    expected = picture(twin, **settings)
    assert distance(picture(fast, **settings), expected) < NEAR
    assert distance(picture(fast, **settings), expected) < NEAR
    return expected


def reports(fast: Any) -> dict[str, Any]:
    return {module.name: module for module in fast.report().modules}


def assert_fused(fast: Any, **fusions: str) -> None:
    """Each module was traced, ran fused and never eager; ``fusions``: by module (``vae_decoder``), what must have been found in it."""
    for name, wanted in fusions.items():
        report = reports(fast)[name.replace("vae_", "vae.")]
        assert report.calls["traced"] and report.calls["fused"] and not report.calls["eager"], report.text()
        for signature in report.signatures:
            assert signature.eager_because is None, report.text()
            assert all(signature.passes[fusion] for fusion in wanted.split()), report.text()


UNET = "fuse_group_norm_act fuse_conv_act fuse_add_layer_norm fuse_geglu fuse_attention pack_context pack_embedding pack_qkv"
TEXT = "fuse_add_layer_norm fuse_linear_act fuse_attention pack_qkv"
DECODER = "fuse_group_norm_act fuse_conv_act fuse_attention"
DENOISER = "fuse_attention pack_qkv"


@pytest.mark.parametrize("kind", ["sd", "sdxl"])
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
    weak, strong = (assert_same_pictures(fast, twin, image=tiny.noise_picture(), strength=s, num_inference_steps=4) for s in (0.3, 0.9))
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


def assert_never_stale(steps: list[tuple[str, Step]], twin: Any, fast: Any, **settings: Any) -> None:
    """After each step the picture is the twin's. A step whose name ends in * doesn't change the picture, every other one does."""
    before = assert_same_pictures(fast, twin, **settings)
    for name, step in steps:
        step(twin)
        step(fast)
        after = assert_same_pictures(fast, twin, **settings)
        assert (distance(after, before) < NEAR) == name.endswith("*"), name
        before = after


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


def test_the_scale_of_an_ip_adapter() -> None:
    twin, fast = tiny.sd(), compiled(tiny.sd())
    for pipeline in (twin, fast):
        pipeline.load_ip_adapter(tiny.ip_adapter(pipeline), subfolder="", weight_name="", image_encoder_folder=None)
    embeddings = [torch.randn(2, 1, 24, generator=torch.Generator().manual_seed(0))]
    steps: list[tuple[str, Step]] = [(f"scale {scale}", lambda p, s=scale: p.set_ip_adapter_scale(s)) for scale in (0.5, 0.0, 0.8)]
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
    assert distance(picture(fast), half) < 0.03 and distance(picture(fast), half) < 0.03  # a bfloat16 in 0.5..1 is exact to 0.004
    assert distance(half, single) > 10 * NEAR
    tokens = torch.ones(1, tiny.TOKENS, dtype=torch.int64)
    with torch.no_grad():  # its inputs are the same in every dtype
        for dtype in (torch.bfloat16, torch.float32, torch.bfloat16):
            assert fast.text_encoder.to(dtype)(tokens).last_hidden_state.dtype == dtype
            assert fast.text_encoder(tokens)[0].dtype == dtype
    fast.to(torch.float32)
    assert_same_pictures(fast, twin.to(torch.float32))
    assert_fused(fast, unet=UNET, text_encoder=TEXT, vae_decoder=DECODER)


def layout(pipeline: Any) -> dict[str, tuple[Any, ...]]:
    """By parameter: strides, whether its storage is its own, and its values."""
    found = {}
    for part in ("unet", "text_encoder", "vae"):
        for name, weight in getattr(pipeline, part).named_parameters():
            found[f"{part}.{name}"] = (weight.stride(), weight.untyped_storage().nbytes() == weight.nbytes, weight.detach().clone())
    return found


def test_uninstall_gives_the_pipeline_back_as_it_was() -> None:
    pipeline = tiny.sd()
    expected, before = picture(pipeline), layout(pipeline)
    fast = compiled(pipeline)
    assert fast.unet is pipeline.unet and "forward" in pipeline.unet.__dict__
    assert distance(picture(fast), expected) < NEAR and distance(picture(pipeline), expected) < NEAR
    assert any(layout(pipeline)[name][:2] != before[name][:2] for name in before)  # weights were laid out anew
    assert fast.uninstall() is pipeline
    modules = [module for part in (pipeline.unet, pipeline.text_encoder, pipeline.vae) for module in part.modules()]
    assert not any("forward" in module.__dict__ for module in modules)
    for name, (stride, alone, values) in layout(pipeline).items():
        assert (stride, alone) == before[name][:2] and torch.equal(values, before[name][2]), name
    assert np.array_equal(picture(pipeline), expected)
    assert np.array_equal(picture(fast), expected) and "forward" not in pipeline.unet.__dict__  # calling it doesn't compile again
    assert_same_pictures(compiled(pipeline), tiny.sd())


@pytest.mark.parametrize("hold", ["pipeline", "compiled"])
def test_a_deleted_pipeline_is_freed_without_the_collector(hold: str) -> None:
    pipeline = tiny.sdxl()
    fast = compiled(pipeline)
    picture(fast)
    picture(fast)
    kept = [weakref.ref(module) for part in pipeline.components.values() if isinstance(part, torch.nn.Module) for module in part.modules()]
    kept += [weakref.ref(weight) for part in (pipeline.unet, pipeline.text_encoder, pipeline.vae) for weight in part.parameters()]
    gc.collect()
    gc.disable()
    try:
        if hold == "pipeline":
            del fast
            assert distance(picture(pipeline), picture(pipeline)) == 0
            del pipeline
        else:
            del pipeline
            assert distance(picture(fast), picture(fast)) == 0
            del fast
        assert sum(ref() is not None for ref in kept) == 0
    finally:
        gc.enable()


def test_a_saved_pipeline_holds_the_weights_that_it_had(tmp_path: Path) -> None:
    fast = compiled(tiny.sd())
    expected = picture(tiny.sd())
    picture(fast)
    fast.save_pretrained(tmp_path)
    loaded = tiny.quiet(diffusers.StableDiffusionPipeline.from_pretrained(tmp_path))
    assert np.array_equal(picture(loaded), expected)


def test_a_model_that_takes_anothers_place_is_compiled_at_the_next_call() -> None:
    twin, fast = tiny.sd(), compiled(tiny.sd())
    first = assert_same_pictures(fast, twin)
    old = fast.unet
    fast.unet, twin.unet = (tiny.unet(tiny.SD, seed=33) for _ in range(2))
    assert distance(assert_same_pictures(fast, twin), first) > 10 * NEAR
    assert_fused(fast, unet=UNET)
    assert "forward" not in old.__dict__ and "forward" in fast.unet.__dict__
    assert "forward" not in fast.uninstall().unet.__dict__


def test_offloading_hooks_survive_and_do_not_hide_the_compiled_forward() -> None:
    hooks = pytest.importorskip("accelerate.hooks")

    class Counting(hooks.ModelHook):
        calls = 0

        def pre_forward(self, module: Any, *args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return args, kwargs

    expected = picture(tiny.sd())
    for hooked_first in (True, False):
        pipeline, hook = tiny.sd(), Counting()
        if hooked_first:
            hooks.add_hook_to_module(pipeline.unet, hook)
        fast = compiled(pipeline)
        if not hooked_first:
            hooks.add_hook_to_module(pipeline.unet, hook)
        assert distance(picture(fast), expected) < NEAR
        hooks.remove_hook_from_module(pipeline.unet)  # as pipelines do at the end of a call
        hooks.add_hook_to_module(pipeline.unet, hook)
        assert distance(picture(fast), expected) < NEAR
        assert hook.calls == 4 and reports(fast)["unet"].calls == {"traced": 1, "fused": 3}
        fast.uninstall()
        assert np.array_equal(picture(pipeline), expected) and hook.calls == 6
        hooks.remove_hook_from_module(pipeline.unet)
        assert np.array_equal(picture(pipeline), expected) and hook.calls == 6


def test_a_hook_of_the_users_is_called_at_each_step() -> None:
    fast, seen = compiled(tiny.sd()), []
    expected = picture(tiny.sd())
    assert distance(picture(fast), expected) < NEAR
    handle = fast.unet.mid_block.register_forward_hook(lambda module, args, out: seen.append(out.shape))
    assert distance(picture(fast), expected) < NEAR and distance(picture(fast), expected) < NEAR and len(seen) == 4
    report = reports(fast)["unet"]
    assert any("has forward hooks" in reason for reason in report.reasons)
    assert report.calls == {"traced": 2, "fused": 1, "eager": 3}
    handle.remove()
    assert distance(picture(fast), expected) < NEAR and len(seen) == 4
    assert report.calls == {"traced": 3, "fused": 2, "eager": 3}


def test_what_is_no_pipeline_is_refused_by_name() -> None:
    for wrong in (5, None, torch.nn.Linear(1, 1), diffusers.StableDiffusionPipeline):
        with pytest.raises(TypeError, match=r"compile_pipeline\(pipeline\): got .*needs a diffusers DiffusionPipeline"):
            sfast_core.compile_pipeline(wrong)
    pipeline = tiny.sd()
    with pytest.raises(TypeError, match=r"compile_pipeline\(config\): got a dict"):
        sfast_core.compile_pipeline(pipeline, {"measure": False})

    class Empty(diffusers.DiffusionPipeline):  # type: ignore[name-defined, misc]
        def __init__(self, scheduler: Any) -> None:
            super().__init__()
            self.register_modules(scheduler=scheduler)

    with pytest.raises(ValueError, match="Empty has none of unet, "):
        sfast_core.compile_pipeline(Empty(diffusers.DDIMScheduler()))
    assert "forward" not in pipeline.unet.__dict__


def test_compiled_twice() -> None:
    fast = compiled(tiny.sd())
    for again in (fast, fast.pipeline):
        with pytest.raises(ValueError, match=r"compile_pipeline\(pipeline\): .* compiled already"):
            compiled(again)
    sharing = tiny.sd(diffusers.StableDiffusionImg2ImgPipeline)
    own, sharing.vae = sharing.unet, fast.vae
    with pytest.raises(ValueError, match="its vae.encoder is compiled already"):
        compiled(sharing)
    assert "forward" not in own.__dict__ and "forward" in fast.vae.encoder.__dict__  # nothing was changed
    assert_same_pictures(fast, tiny.sd())


def test_attributes_are_the_pipelines() -> None:
    fast = compiled(tiny.sd())
    fast.note = 3
    assert fast.pipeline.note == fast.note == 3 and "note" not in fast.__dict__
    del fast.note
    assert not hasattr(fast, "note") and "unet" in dir(fast) and "unet" in repr(fast)
    assert fast.components.keys() == fast.pipeline.components.keys()
    assert isinstance(fast, sfast_core.hosts.diffusers.CompiledPipeline)  # type: ignore[attr-defined]


def test_the_import_brings_no_diffusers() -> None:
    code = "import sys, sfast_core.hosts.diffusers; assert 'diffusers' not in sys.modules and 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).resolve().parents[2])
