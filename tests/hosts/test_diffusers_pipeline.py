"""The handle of a compiled diffusers pipeline: what stays the pipeline's, how it is given back, and what is refused."""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys
import weakref
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
from tests.hosts.diffusers_checks import NEAR, UNET, assert_fused, assert_same_pictures, compiled, distance, reports  # noqa: E402
from tests.hosts.diffusers_pipelines import picture  # noqa: E402


def layout(pipeline: Any) -> dict[str, tuple[Any, ...]]:
    """By parameter: strides, whether its storage is its own, and its values."""
    found = {}
    for part in ("unet", "text_encoder", "vae"):
        for name, weight in getattr(pipeline, part).named_parameters():
            found[f"{part}.{name}"] = (
                weight.stride(),
                weight.untyped_storage().nbytes() == weight.nbytes,
                weight.detach().clone(),
            )
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
    # calling it doesn't compile again
    assert np.array_equal(picture(fast), expected) and "forward" not in pipeline.unet.__dict__
    assert_same_pictures(compiled(pipeline), tiny.sd())


@pytest.mark.parametrize("hold", ["pipeline", "compiled"])
def test_a_deleted_pipeline_is_freed_without_the_collector(hold: str) -> None:
    pipeline = tiny.sdxl()
    fast = compiled(pipeline)
    picture(fast)
    picture(fast)
    kept = [
        weakref.ref(module)
        for part in pipeline.components.values()
        if isinstance(part, torch.nn.Module)
        for module in part.modules()
    ]
    kept += [
        weakref.ref(weight)
        for part in (pipeline.unet, pipeline.text_encoder, pipeline.vae)
        for weight in part.parameters()
    ]
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


def test_a_call_is_a_sampling_for_weights_that_are_away() -> None:
    """Within which copies of them may stay; not where a callback of the user's runs between steps, which may write to
    them.
    """
    fast, seen = compiled(tiny.sd()), []
    step, store = fast.scheduler.step, fast._compiled["unet"].engine.store

    def noting(*args: Any, **kwargs: Any) -> Any:
        seen.append(store.period())
        return step(*args, **kwargs)

    fast.scheduler.step = noting
    picture(fast)
    picture(fast)
    assert (
        len(seen) == 4
        and seen[0] is seen[1] is not None
        and seen[2] is seen[3] not in (None, seen[0])
        and store.period() is None
    )
    picture(fast, callback_on_step_end=lambda pipeline, index, time, tensors: tensors)
    assert seen[4:] == [None, None]


def test_a_hook_of_the_users_is_called_at_each_step() -> None:
    fast, seen = compiled(tiny.sd()), []
    expected = picture(tiny.sd())
    assert distance(picture(fast), expected) < NEAR
    handle = fast.unet.mid_block.register_forward_hook(lambda module, args, out: seen.append(out.shape))
    assert distance(picture(fast), expected) < NEAR and distance(picture(fast), expected) < NEAR and len(seen) == 4
    report = reports(fast)["unet"]
    assert any("forward hooks" in reason and "live" in reason for reason in report.reasons), report.reasons
    # behind the first call that block alone runs as it was
    assert report.calls == {"traced": 2, "fused": 3, "eager": 1}
    handle.remove()
    assert distance(picture(fast), expected) < NEAR and len(seen) == 4
    assert report.calls["eager"] == 1


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
    twin, fast = tiny.sd(), compiled(tiny.sd())
    assert_same_pictures(fast, twin)
    assert compiled(fast) is fast and reports(fast)["unet"].signatures
    plain = CompileConfig(allow_cpu=True, adopt_weights=False)
    assert sfast_core.compile_pipeline(fast, plain) is fast and not reports(fast)["unet"].signatures
    assert_same_pictures(fast, twin)
    assert reports(fast)["unet"].settings["adopt_weights"] is False and not reports(fast)["unet"].adopted_bytes
    assert sfast_core.compile_pipeline(fast.pipeline) is fast  # the pipeline itself is as good as its handle
    assert sfast_core.compile_pipeline(fast.pipeline, plain.replace(measure=False)) is fast
    assert reports(fast)["unet"].settings["measure"] is False
    for copied in (copy.copy(fast.pipeline), pickle.loads(pickle.dumps(fast.pipeline))):
        assert compiled(copied) is not fast
    fast.uninstall()
    assert (fresh := compiled(fast.pipeline)) is not fast  # nothing is left of a pipeline that was given back
    assert reports(fresh)["unet"].settings["measure"] and reports(fresh)["unet"].settings["adopt_weights"]
    fresh.uninstall()
    assert compiled(fast) is fast and "forward" in fast.unet.__dict__
    assert_same_pictures(fast, twin)


def test_pipelines_that_share_models() -> None:
    twin, one = tiny.sd(), compiled(tiny.sd())
    other = compiled(copy.copy(one.pipeline))
    assert other is not one and reports(other)["unet"] is reports(one)["unet"]
    assert_same_pictures(one, twin)
    one.uninstall()
    assert "forward" not in one.unet.__dict__
    assert_same_pictures(other, twin)
    assert "forward" in one.unet.__dict__ and reports(other)["unet"].calls["traced"]


@pytest.mark.parametrize(
    "make",
    [copy.copy, copy.deepcopy, lambda fast: pickle.loads(pickle.dumps(fast))],
    ids=["copy", "deepcopy", "pickle"],
)
@pytest.mark.parametrize("installed", [True, False], ids=["compiled", "uninstalled"])
def test_copies(make: Any, installed: bool) -> None:
    twin, fast = tiny.sd(), compiled(tiny.sd())
    assert_same_pictures(fast, twin)
    if not installed:
        fast.uninstall()
    copied = make(fast)
    assert type(copied) is type(fast) and copied.pipeline is not fast.pipeline
    assert (copied.unet is fast.unet) is (make is copy.copy)
    copied.scheduler = diffusers.DDIMScheduler.from_config(fast.scheduler.config)
    assert fast.scheduler is not copied.scheduler
    copied.scheduler = fast.scheduler
    for pipeline in (copied, fast, copied):
        assert_same_pictures(pipeline, twin)
    assert bool(copied.report().modules) is installed
    copied.uninstall()
    for pipeline in (fast, copied):
        assert_same_pictures(pipeline, twin)


@pytest.mark.parametrize("order", ["before", "after"])
def test_a_unet_that_compiles_itself(order: str) -> None:
    twin, pipeline = tiny.sd(), tiny.sd()
    if order == "before":
        pipeline.unet.compile(backend="eager")
    fast = compiled(pipeline)
    if order == "after":
        pipeline.unet.compile(backend="eager")
    assert_same_pictures(fast, twin)
    fast.uninstall()
    assert_same_pictures(fast, twin)


def test_attributes_are_the_pipelines() -> None:
    fast = compiled(tiny.sd())
    fast.note = 3
    assert fast.pipeline.note == fast.note == 3 and "note" not in fast.__dict__
    del fast.note
    assert not hasattr(fast, "note") and "unet" in dir(fast) and "unet" in repr(fast)
    assert fast.components.keys() == fast.pipeline.components.keys()
    assert isinstance(fast, sfast_core.hosts.diffusers.CompiledPipeline)  # type: ignore[attr-defined]


def test_what_compiles_modules_says_what_is_for_pipelines() -> None:
    fast = compiled(tiny.sd())
    with pytest.raises(TypeError, match="a compiled pipeline has a method uninstall"):
        sfast_core.uninstall(fast)
    with pytest.raises(TypeError, match="for a pipeline there is sfast_core.compile_pipeline"):
        sfast_core.compile(fast)


def test_it_passes_for_a_pipeline() -> None:
    """For who asks, and for diffusers, which makes another kind of pipeline of its models."""
    twin, fast = tiny.sd(), compiled(tiny.sd())
    assert isinstance(fast, diffusers.DiffusionPipeline) and isinstance(
        fast, sfast_core.hosts.diffusers.CompiledPipeline
    )  # type: ignore[attr-defined]
    strengthened = [diffusers.AutoPipelineForImage2Image.from_pipe(each) for each in (twin, fast)]
    assert (
        strengthened[1].unet is fast.unet
        and type(strengthened[0]) is type(strengthened[1]) is diffusers.StableDiffusionImg2ImgPipeline
    )
    expected, drawn = (picture(each, image=tiny.noise_picture(), num_inference_steps=4) for each in strengthened)
    assert (
        distance(drawn, expected) < NEAR
        and reports(fast)["unet"].calls.get("traced")
        and not reports(fast)["unet"].calls.get("eager")
    )


def test_the_import_brings_no_diffusers() -> None:
    code = "import sys, sfast_core.hosts.diffusers; assert 'diffusers' not in sys.modules and 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).resolve().parents[2])
