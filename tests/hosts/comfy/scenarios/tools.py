"""The nodes around the compiled model: report, warm-up, benchmark, freeing memory."""

from __future__ import annotations

import asyncio
import importlib
import math
from typing import Any
from unittest.mock import patch

import comfy.model_management
import comfy.utils
import part_tools
import torch
from driver import (
    PACK,
    CompileConfig,
    assert_close,
    calls,
    distance,
    fast_compile,
    layouts,
    load,
    prompt,
    report_of,
    sample,
)
from scenario_tools import MB

BENCHMARK = importlib.import_module(".sfast_core.hosts.comfy.benchmark", PACK.__name__)


def _node(name: str) -> Any:
    async def nodes() -> list[Any]:
        listed: list[Any] = await (await PACK.comfy_entrypoint()).get_node_list()
        return listed

    return next(kind for kind in asyncio.run(nodes()) if kind.GET_SCHEMA().node_id == name)


def _shown(output: Any) -> str:
    return str(output.ui.as_dict()["text"][0])


def _assert_picture(image: torch.Tensor) -> None:
    assert image.dim() == 4 and image.shape[0] == 1 and image.shape[3] == 3 and image.dtype == torch.float32
    assert 0 <= image.min() and image.max() <= 1 and image.std() > 0.01


# -- the report ----------------------------------------------------------------------------------------------------


def scenario_the_report_of_one_and_of_all() -> None:
    report = _node("FastCompileReport").execute
    text, picture = report().result
    assert "No model has run through Fast Compile" in text and torch.__version__ in text
    _assert_picture(picture)
    model, other = load("sd3"), load("sd3")
    fast = fast_compile.apply(model)
    sample(fast), sample(fast_compile.apply(other))
    output = report(fast, after={"samples": None})
    text, picture = output.result
    assert _shown(output) == text and text.count("SD3 on cpu") == 1
    for word in (
        "1 traced, 1 fused",
        "fuse_attention",
        "distance to eager",
        "traced in",
        "By size:",
    ):
        assert word in text, f"{word!r} isn't in\n{text}"
    assert (
        text.startswith("SD3 on cpu: traced and fused, which makes nothing faster on a CPU\n")
        and "not taken" not in text
    ), "kernels that need CUDA, where there is none"
    _assert_picture(picture)
    assert report().result[0].count("SD3 on cpu") == 2
    assert "It has not run through Fast Compile" in report(object()).result[0]
    assert "It has not run through Fast Compile" in report(load("sd3")).result[0]


def scenario_the_report_of_a_vae_a_clip_and_a_control_net() -> None:
    """Each alone, by what comes out of its node and by what came in."""
    report = _node("FastCompileReport").execute
    vae, clip, net, model = part_tools.vae(), part_tools.clip(), part_tools.control_net(), load("sd15")
    fast_vae, fast_clip, fast_net = (
        fast_compile.apply_vae(vae),
        fast_compile.apply_clip(clip),
        fast_compile.apply_controlnet(net),
    )
    fast_vae.decode(torch.randn(1, 4, 8, 8)), part_tools.encode(fast_clip, "a cat")
    hinted = fast_net.copy().set_cond_hint(torch.rand(1, 3, 64, 64), 1.0, (0.0, 1.0))
    fast = fast_compile.apply(model)
    sample(fast, positive=prompt(model, 1, control=hinted), negative=prompt(model, 2, control=hinted))
    names = {
        "VAE decoder": (fast_vae, vae),
        "Text encoder": (fast_clip, clip),
        "ControlNet": (fast_net, net),
        "SD15 on": (fast, model),
    }
    for name, things in names.items():
        for thing in things:
            text = report(thing).result[0]
            heads = [line for line in text.splitlines() if " on cpu" in line and not line.startswith(" ")]
            assert len(heads) == 1 and heads[0].startswith(name), text
    assert all(name in report().result[0] for name in names)


def scenario_the_report_names_fallbacks() -> None:
    model = load("sd3")
    fast = fast_compile.apply(model)
    with patch.dict("os.environ", {"FAST_COMPILE_CPU": ""}):
        sample(fast)
    text = _node("FastCompileReport").execute(fast).result[0]
    assert "ran as before, 2x: the inputs are on cpu" in text


def scenario_the_report_is_never_cached() -> None:
    value = _node("FastCompileReport").fingerprint_inputs(of=None, after=None)
    assert math.isnan(value)


# -- warm-up -------------------------------------------------------------------------------------------------------


def _ksampler(model: Any, width: int, height: int, batch: int = 1, cfg: float = 8.0) -> torch.Tensor:
    """What ComfyUI's own nodes would sample."""
    import nodes

    latent = nodes.EmptyLatentImage().generate(width, height, batch)[0]
    inputs = {"seed": 3, "steps": 3, "cfg": cfg, "sampler_name": "dpmpp_2m", "scheduler": "karras"}
    found = nodes.KSampler().sample(
        model=model, positive=prompt(model, 1), negative=prompt(model, 2), latent_image=latent, **inputs
    )
    result: torch.Tensor = found[0]["samples"]
    return result


def scenario_after_a_warm_up_nothing_is_traced_or_captured() -> None:
    for family in ("sd15", "sd3"):
        with part_tools.Capturing() as graphs:
            model = load(family)
            expected = _ksampler(model, 64, 96)
            fast = fast_compile.apply(model)
            output = _node("FastCompileWarmUp").execute(
                fast, prompt(model, 1), prompt(model, 2), "64x64 x2, 64x96\n64x64"
            )
            assert output.result[0] is fast
            lines = _shown(output).splitlines()
            assert [line.partition(":")[0] for line in lines] == ["64x64 x2", "64x96", "64x64"]
            assert all("captured in" in line and "10" in line.split()[-2] for line in lines), lines
            assert calls(model) == {"traced": 3, "replayed": 3}
            before, captures = calls(model), graphs.captures
            assert_close(_ksampler(fast, 64, 96), expected)
            _ksampler(fast, 64, 64, 2), _ksampler(fast, 64, 64)
            assert calls(model) - before == {"replayed": 9} and graphs.captures == captures == 3
            again = _node("FastCompileWarmUp").execute(
                fast, prompt(model, 5), prompt(model, 6), "64x64 x2, 64x96, 64x64"
            )
            assert _shown(again).count("was captured already") == 3
            assert calls(model) - before == {"replayed": 12}, "one step a size"


def scenario_a_warm_up_at_cfg_1() -> None:
    """Another batch: the sampler leaves the negative prompt out."""
    model = load("sd3")
    fast = fast_compile.apply(model)
    _node("FastCompileWarmUp").execute(fast, prompt(model, 1), prompt(model, 2), "64x64", 1.0)
    before = calls(model)
    _ksampler(fast, 64, 64, cfg=1.0)
    assert calls(model) - before == {"fused": 3}
    _ksampler(fast, 64, 64)
    assert (calls(model) - before)["traced"] == 1


def scenario_a_warm_up_waits_as_long_as_the_settings_say() -> None:
    with part_tools.Capturing():
        model = load("sd3")
        fast = fast_compile.apply(model, CompileConfig(capture_after=4))
        steps: list[tuple[int, int]] = []
        with patch.object(
            comfy.utils, "PROGRESS_BAR_HOOK", lambda value, total, *_, **__: steps.append((value, total))
        ):
            _node("FastCompileWarmUp").execute(fast, prompt(model, 1), prompt(model, 2), "64x64")
        assert calls(model) == {"traced": 1, "fused": 2, "replayed": 1}
        assert steps[-1] == (4, 4), steps


def scenario_a_warm_up_of_a_model_that_is_not_compiled() -> None:
    model = load("sd3")
    node = _node("FastCompileWarmUp").execute
    output = node(model, prompt(model, 1), prompt(model, 2), "64x64")
    assert output.result[0] is model and "Apply Fast Compile" in _shown(output) and not fast_compile.states()
    with patch.dict("os.environ", {"FAST_COMPILE_CPU": ""}):
        output = node(fast_compile.apply(model), prompt(model, 1), prompt(model, 2), "64x64")
    assert "no NVIDIA GPU" in _shown(output) and not fast_compile.states()


def scenario_a_warm_up_that_runs_as_it_was() -> None:
    fast = fast_compile.apply(load("sd15"))
    if not hasattr(fast, "add_weight_wrapper"):
        return
    fast.add_weight_wrapper("diffusion_model.middle_block.1.proj_in.weight", lambda weight: weight * 1.7)
    output = _node("FastCompileWarmUp").execute(fast, prompt(fast, 1), prompt(fast, 2), "64x64")
    assert "runs as it was, because" in _shown(output) and "compute their weights" in _shown(output)


def scenario_a_wrong_size_is_named() -> None:
    node = _node("FastCompileWarmUp")
    message = node.validate_inputs(sizes="64x64\n1024")
    assert "line 2" in message and "'1024'" in message and "WIDTHxHEIGHT" in message
    assert node.validate_inputs(sizes="64x64") is True and node.validate_inputs() is True
    try:
        node.execute(load("sd3"), None, None, "64x65")
    except ValueError as error:
        assert "64x65" in str(error) and "steps of 8" in str(error)
    else:
        raise AssertionError("64x65 was taken")


def scenario_a_warm_up_that_is_cancelled() -> None:
    model = load("sd3")
    fast = fast_compile.apply(model)
    with patch.object(
        comfy.utils, "PROGRESS_BAR_HOOK", lambda *_, **__: comfy.model_management.interrupt_current_processing()
    ):
        try:
            _node("FastCompileWarmUp").execute(fast, prompt(model, 1), prompt(model, 2), "64x64, 96x96, 64x96")
        except comfy.model_management.InterruptProcessingException:
            pass
        else:
            raise AssertionError("it wasn't cancelled")
    assert sum(calls(model).values()) <= 2


# -- the benchmark -------------------------------------------------------------------------------------------------


def _benchmark(model: Any, **more: Any) -> Any:
    inputs = {"width": 64, "height": 64, "steps": 2, "rounds": 2, **more}
    return _node("FastCompileBenchmark").execute(model, prompt(model, 1), prompt(model, 2), **inputs)


def scenario_the_benchmark() -> None:
    model = load("sd15")
    plain, before = sample(model), layouts(model)
    bar: list[tuple[int, int]] = []
    with (
        part_tools.Capturing() as graphs,
        patch.object(comfy.utils, "PROGRESS_BAR_HOOK", lambda value, total, *_, **__: bar.append((value, total))),
    ):
        output = _benchmark(model)
        assert graphs.bytes == 0
    picture, text = output.result
    _assert_picture(picture)
    assert bar[-1] == (14, 14), bar
    for word in (
        "SD15, 64x64, 2 steps, on cpu",
        "x eager",
        "medians of 2 rounds",
        "largest difference",
        "7 replayed",
        "no NVIDIA GPU",
    ):
        assert word in text, f"{word!r} isn't in\n{text}"
    assert _shown(output) == text
    assert not fast_compile.states() and layouts(model) == before, "something was left behind"
    assert not model.model.diffusion_model._forward_pre_hooks
    assert torch.equal(sample(model), plain)


def scenario_the_benchmark_of_a_compiled_model() -> None:
    """Its settings are measured, and what it had is there again."""
    model = load("sd15")
    fast = fast_compile.apply(model, CompileConfig(disabled_passes=("fuse_attention",)))
    plain = sample(model)
    expected = sample(fast)
    report, before = report_of(model), calls(model)
    seen: list[Any] = []
    compare = BENCHMARK.compare
    with patch.object(BENCHMARK, "fresh_state", _watched(seen)):
        text = _benchmark(fast).result[1]
    assert compare is BENCHMARK.compare and seen, "the node doesn't call it any more"
    assert "traced" in text
    assert report_of(model) is report and calls(model) == before
    assert torch.equal(sample(fast), expected) and not (calls(model) - before)["traced"]
    assert torch.equal(sample(model), plain)


def _watched(seen: list[Any]) -> Any:
    from contextlib import contextmanager

    fresh = BENCHMARK.fresh_state

    @contextmanager
    def watched(model: Any) -> Any:
        with fresh(model):
            yield
            seen.append(report_of(model).settings["disabled_passes"])
            assert seen == [("fuse_attention",)]

    return watched


def scenario_the_benchmark_is_cancelled() -> None:
    model = load("sd15")
    before = layouts(model)
    with patch.object(
        comfy.utils,
        "PROGRESS_BAR_HOOK",
        lambda value, *_, **__: value > 3 and comfy.model_management.interrupt_current_processing(),
    ):
        try:
            _benchmark(model, rounds=5)
        except comfy.model_management.InterruptProcessingException:
            pass
        else:
            raise AssertionError("it wasn't cancelled")
    assert not fast_compile.states() and layouts(model) == before and not model.model.diffusion_model._forward_pre_hooks


def scenario_the_benchmark_finds_a_difference() -> None:
    """The latents compared are those of the two models."""
    model = load("sd3")
    found = BENCHMARK.compare(model, (64, 64, 2), BENCHMARK.Sampling(prompt(model, 1), prompt(model, 2)), 2, 1)
    assert found.shape == (64, 64, 2) and found.distance < 1e-4 and 0 <= found.largest < 1e-2 < found.spread
    original = BENCHMARK.sample
    with patch.object(
        BENCHMARK, "sample", lambda patcher, *args: original(patcher, *args) + bool(patcher.wrappers.get("apply_model"))
    ):
        found = BENCHMARK.compare(model, (64, 64, 1), BENCHMARK.Sampling(prompt(model, 1), prompt(model, 2)), 2, 1)
    assert 0.99 < found.largest < 1.01, found


def scenario_the_benchmark_without_a_gpu() -> None:
    model = load("sd3")
    with patch.dict("os.environ", {"FAST_COMPILE_CPU": ""}):
        picture, text = _benchmark(model).result
    assert "no NVIDIA GPU" in text and "Nothing was measured" in text and not fast_compile.states()
    _assert_picture(picture)


# -- memory --------------------------------------------------------------------------------------------------------


def scenario_freeing_memory() -> None:
    node = _node("FastCompileFreeMemory").execute
    thing = object()
    output = node(thing)
    assert output.result[0] is thing and "nothing to free" in _shown(output)
    with part_tools.Capturing() as graphs:
        model = load("sd3")
        fast = fast_compile.apply(model)
        expected = sample(fast)
        assert graphs.bytes > 100 * MB
        output = node(thing)
        assert output.result[0] is thing and "MB of graphs freed" in _shown(output), _shown(output)
        assert graphs.bytes == 0 == report_of(model).graph_bytes
        before = calls(model)
        assert distance(sample(fast), expected) == 0
        assert calls(model) - before == {"replayed": 2} and graphs.captures == 2
