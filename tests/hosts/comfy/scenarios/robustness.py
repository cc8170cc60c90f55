"""What must never fail a queue: errors of our own, interrupts, other nodes' tricks, threads,
and a host that changed.
"""

from __future__ import annotations

import importlib
import threading
from typing import Any
from unittest.mock import patch

import comfy.model_management
import comfy.ops
import torch
from driver import PACK, assert_close, assert_eager, assert_fused, calls, fast_compile, load, prompt, report_of, sample
from scenario_tools import apply_model

INTERRUPTED = comfy.model_management.InterruptProcessingException
STATE = importlib.import_module(".sfast_core.hosts.comfy.state", PACK.__name__)
LIVE = importlib.import_module(".sfast_core.hosts.live", PACK.__name__)


def _stopped(call: Any) -> None:
    try:
        call()
    except INTERRUPTED:
        return
    raise AssertionError("the interrupt was swallowed")


def scenario_cancel_between_steps() -> None:
    model = load("sd3")
    fast = fast_compile.apply(model)
    sample(fast)
    count = [0]

    def wrapper(apply: Any, call: dict[str, Any]) -> Any:
        count[0] += 1
        if count[0] == 3:
            comfy.model_management.interrupt_current_processing()
        return apply(call["input"], call["timestep"], **call["c"])

    watched = fast.clone()
    watched.set_model_unet_function_wrapper(wrapper)
    _stopped(lambda: sample(watched, steps=8))
    assert count[0] == 3, "it didn't stop at the step in which it was cancelled"
    before = calls(model)
    sample(fast)
    assert_fused(model, before)


def scenario_cancel_while_it_traces() -> None:
    """In the first call the layers themselves look for it, where this version has that."""
    if not hasattr(comfy.ops, "run_every_op"):
        return
    model = load("sd3")
    fast, look, count = fast_compile.apply(model), comfy.ops.run_every_op, [0]

    def run_every_op() -> None:
        count[0] += 1
        if count[0] == 10:
            comfy.model_management.interrupt_current_processing()
        look()

    with patch.object(comfy.ops, "run_every_op", run_every_op):
        _stopped(lambda: sample(fast))
    assert count[0] == 10
    expected = sample(model)
    sample(fast)
    assert_close(sample(fast), expected)
    assert_fused(model)


def scenario_an_error_of_the_model_surfaces() -> None:
    """As it is, also when the model is fused already, and the next call works."""
    model = load("sd15")
    fast, wrong = fast_compile.apply(model), [[torch.zeros(1, 77, 12), {}]]
    seen = []
    for patcher in (model, fast, fast):
        try:
            sample(patcher, positive=wrong, negative=wrong)
        except Exception as error:
            seen.append((type(error), str(error)))
    assert len(seen) == 3 and len(set(seen)) == 1, seen
    sample(fast)
    before = calls(model)
    sample(fast)
    assert_fused(model, before)
    try:
        sample(fast, positive=wrong, negative=wrong)
    except Exception as error:
        assert (type(error), str(error)) == seen[0] and error.__context__ is None
    else:
        raise AssertionError("it should have failed")
    before = calls(model)
    sample(fast)
    assert_fused(model, before)


def scenario_an_error_of_ours_runs_eager() -> None:
    model = load("sd3")
    expected, fast = sample(model), fast_compile.apply(model)

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError("a bug")

    for owner, name in ((LIVE, "live_steering"), (STATE.Engine, "call"), (STATE.Obstacles, "reason")):
        with patch.object(owner, name, broken):
            assert torch.equal(sample(fast), expected), name
            assert any("a bug" in reason for reason in report_of(model).reasons), name
    with patch.object(STATE.ModelState, "__init__", broken):
        other = load("sd3")
        assert torch.equal(sample(fast_compile.apply(other)), expected)
    sample(fast)
    before = calls(model)
    sample(fast)
    assert_fused(model, before)


def scenario_comfy_without_its_casting_function() -> None:
    model = load("sd3")
    expected, fast, cast = sample(model), fast_compile.apply(model), comfy.ops.cast_bias_weight
    del comfy.ops.cast_bias_weight
    try:
        sample(fast)
        assert_close(sample(fast), expected)
        assert_fused(model)
    finally:
        comfy.ops.cast_bias_weight = cast


def scenario_the_casting_functions_are_put_back() -> None:
    names = [name for name in ("cast_bias_weight", "uncast_bias_weight") if hasattr(comfy.ops, name)]
    before = [getattr(comfy.ops, name) for name in names]
    sample(fast_compile.apply(load("sd3")))
    assert [getattr(comfy.ops, name) for name in names] == before


def scenario_others_clear_the_hooks() -> None:
    model = load("sd15")
    plain, fast = sample(model), fast_compile.apply(model)
    sample(fast)
    model.model.diffusion_model._forward_pre_hooks.clear()
    sample(fast)
    assert torch.equal(sample(model), plain)


def scenario_threads_on_one_model() -> None:
    """Two through the node and one without, at once: each gets what it would get alone."""
    model = load("sd3")
    sample(model)
    fast = fast_compile.apply(model)
    sample(fast)
    expected = {seed: apply_model(model, seed) for seed in range(6)}
    before = calls(model)
    failures: list[str] = []

    def run(patcher: Any, seeds: range) -> None:
        try:
            with torch.inference_mode():
                for seed in [*seeds] * 3:
                    assert_close(apply_model(patcher, seed), expected[seed])
        except BaseException as error:
            failures.append(repr(error))

    work = [(fast, range(0, 3)), (fast, range(3, 6)), (model, range(0, 6))]
    threads = [threading.Thread(target=run, args=job) for job in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    since = calls(model) - before
    assert since["fused"] + since["traced"] == 18 == since.total(), f"{dict(since)}: of 2 x 9 calls through the node"
    assert "forward" not in model.model.diffusion_model.__dict__


def scenario_two_models_traced_in_two_threads() -> None:
    models = [load("sd3"), load("sd3")]
    expected = []
    for model in models:
        sample(model)
        expected.append(apply_model(model, 1))
    cast, failures = comfy.ops.cast_bias_weight, []

    def run(model: Any, theirs: torch.Tensor) -> None:
        try:
            with torch.inference_mode():
                fast = fast_compile.apply(model)
                for _ in range(3):
                    assert_close(apply_model(fast, 1), theirs)
        except BaseException as error:
            failures.append(repr(error))

    threads = [threading.Thread(target=run, args=job) for job in zip(models, expected, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    assert comfy.ops.cast_bias_weight is cast
    for model in models:
        assert_fused(model)


def scenario_torch_compile_on_the_same_model() -> None:
    """In either order the call is left to torch.compile, and the report says so."""
    from comfy_api.torch_helpers import set_torch_compile_wrapper

    model = load("sd3")
    expected = sample(model)
    compiled = model.clone()
    set_torch_compile_wrapper(compiled, backend="eager")
    behind = fast_compile.apply(compiled)
    assert_close(sample(behind), expected)
    assert_eager(model, "torch.compile")
    before, fast = calls(model), fast_compile.apply(model)
    (wrapper,) = compiled.get_wrappers("apply_model", "torch.compile")
    fast.add_wrapper_with_key("apply_model", "torch.compile", wrapper)
    assert_close(sample(fast), expected)
    assert_eager(model, "torch.compile", before)


def scenario_autocast() -> None:
    """A signature of its own, with the casts that autocast makes."""
    model = load("sd3")
    fast = fast_compile.apply(model)
    plain = sample(fast)
    before = calls(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = sample(model)
        assert_close(sample(fast), expected, limit=3e-2)
        assert_close(sample(fast), expected, limit=3e-2)
    assert_fused(model, before)
    assert_close(sample(fast), plain)


def scenario_options_that_change_at_every_step() -> None:
    """A model that reads what only travels along: a number is compared at each call, a tensor goes into the program at
    each step as it is.
    """
    model = load("sd3")
    inner = type(model.model.diffusion_model)
    original = inner.forward

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return original(self, *args, **kwargs) * (1 + len(kwargs["transformer_options"]["cond_or_uncond"]))

    def by_sigma(self: Any, *args: Any, **kwargs: Any) -> Any:
        return original(self, *args, **kwargs) * kwargs["transformer_options"]["sigmas"].float().mean()

    for changed in (forward, by_sigma):
        with patch.object(inner, "forward", changed):
            model = load("sd3")
            fast = fast_compile.apply(model)
            for options in ({}, {"cfg": 1.0}, {}):
                expected = sample(model, steps=3, **options)
                assert_close(sample(fast, steps=3, **options), expected)
                before = calls(model)
                assert_close(sample(fast, steps=3, **options), expected)
                assert_fused(model, before)


def scenario_a_model_that_is_none_of_ours() -> None:
    for wrong in (None, object(), torch.nn.Linear(2, 2)):
        try:
            fast_compile.apply(wrong)
        except TypeError as error:
            assert "apply(model)" in str(error)
        else:
            raise AssertionError(f"apply took a {type(wrong).__name__}")


def scenario_a_diffusion_model_that_is_no_module() -> None:
    """As other accelerators put one in its place."""

    class Engine:
        dtype = torch.float32

        def __call__(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            return x * 0.5

    model = load("sd3")
    del model.model.diffusion_model
    model.model.diffusion_model = Engine()
    expected = sample(model)
    fast = fast_compile.apply(model)
    assert torch.equal(sample(fast), expected)
    assert_eager(model, "Engine")


def scenario_a_model_that_cannot_be_hooked() -> None:
    model = load("sd3")
    expected, fast = sample(model), fast_compile.apply(model)

    def broken(*args: Any) -> None:
        raise RuntimeError("a bug")

    with patch.object(STATE.ModelState, "_install", broken):
        assert torch.equal(sample(fast), expected)
    assert calls(model)["eager"] == 2 and "its forward could not be replaced" in report_of(model).reasons
    before = calls(model)
    sample(fast)
    assert_close(sample(fast), expected)
    assert_fused(model, before)


def scenario_without_the_switch_a_cpu_model_runs_as_it_was() -> None:
    model = load("sd3")
    expected, fast = sample(model), fast_compile.apply(model)
    with patch.dict("os.environ", {"FAST_COMPILE_CPU": ""}):
        assert torch.equal(sample(fast), expected)
    assert_eager(model, "cpu")


def scenario_a_batch_of_nothing() -> None:
    """The host never does it; whatever its model says to it must come out."""
    model = load("sd15")
    fast = fast_compile.apply(model)
    sample(fast)
    seen = []
    for patcher in (model, fast):
        try:
            seen.append(tuple(apply_model(patcher, 0, batch=0).shape))
        except Exception as error:
            seen.append((type(error), str(error)))
    assert seen[0] == seen[1], seen
    sample(fast, positive=prompt(model, 9))
