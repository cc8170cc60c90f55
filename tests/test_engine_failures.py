"""Whatever goes wrong, the result is the module's own, the reason is said, and the next call works."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfast_core import CompiledModule
from sfast_core.capture import recording
from sfast_core.rewrite import pipeline
from tests.callers import compiled, own
from tests.models import Forward, UNet

pytestmark = pytest.mark.usefixtures("no_gradients")


def linear(function: Callable[..., Any] = lambda net, x: net.lin(x)) -> Forward:
    return Forward(function, lin=nn.Linear(4, 4))


def state(net: nn.Module) -> dict[str, tuple[torch.Tensor, tuple[int, ...]]]:
    return {name: (value.clone(), value.stride()) for name, value in net.state_dict().items()}


def unchanged(net: nn.Module, before: dict[str, tuple[torch.Tensor, tuple[int, ...]]]) -> bool:
    return all(
        torch.equal(value, before[name][0]) and value.stride() == before[name][1]
        for name, value in net.state_dict().items()
    )


# -- calls that aren't for us --------------------------------------------------------------------------------------


def refuses(handle: CompiledModule, words: str, *args: Any, **kwargs: Any) -> None:
    """The call gives exactly what the module gives, eager, and for this reason."""
    before = handle.engine.report.calls["eager"]
    result, expected = handle(*args, **kwargs), own(handle, *args, **kwargs)
    assert torch.equal(result, expected) and result.requires_grad == expected.requires_grad
    assert handle.engine.report.calls["eager"] == before + 1
    assert any(words in reason for reason in handle.engine.report.reasons), handle.engine.report.reasons


@pytest.mark.parametrize(
    ("words", "args", "kwargs"),
    [
        ("an input is empty", (torch.randn(0, 4),), {}),
        ("there is no tensor among the arguments", (), {}),
        ("args[1] holds a function", (torch.randn(2, 4), lambda: 0), {}),
        ("kwargs['other'] holds a set", (torch.randn(2, 4),), {"other": {(1,)}}),
        ("the inputs are on meta", (torch.randn(2, 4, device="meta"),), {}),
    ],
    ids=["batch 0", "no tensor", "a function", "a set", "meta"],
)
def test_inputs_that_cannot_be_compiled(words: str, args: Any, kwargs: Any) -> None:
    x, default = torch.randn(2, 4), torch.randn(2, 4)
    handle = compiled(Forward(lambda net, y=default, *_, **__: y * 2 if y.is_meta else net.lin(y), lin=nn.Linear(4, 4)))
    if words.startswith("the inputs"):
        assert handle(*args).is_meta and words in next(iter(handle.engine.report.reasons))
    else:
        refuses(handle, words, *args, **kwargs)
    torch.testing.assert_close(handle(x), handle.module.lin(x))
    assert handle.engine.report.calls["traced"] == 1


def test_gradients_mean_eager() -> None:
    handle = compiled(linear())
    with torch.enable_grad():
        refuses(handle, "gradients are being recorded", torch.randn(2, 4))
        handle(torch.randn(2, 4)).sum().backward()
    assert handle.module.lin.weight.grad is not None
    handle.module.requires_grad_(False)
    with torch.enable_grad():
        refuses(handle, "gradients are being recorded", torch.randn(2, 4, requires_grad=True))
        assert not handle(torch.randn(2, 4)).requires_grad
    assert handle.engine.report.calls["traced"] == 1


def test_a_cpu_is_compiled_on_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FAST_COMPILE_CPU", raising=False)
    handle = compiled(linear(), allow_cpu=None)
    refuses(handle, "the inputs are on cpu, which isn't a CUDA device", torch.randn(2, 4))
    monkeypatch.setenv("FAST_COMPILE_CPU", "1")
    handle(torch.randn(2, 4))
    assert handle.engine.report.calls["traced"] == 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float8_e4m3fn])
def test_unusual_weights(dtype: torch.dtype) -> None:
    handle = compiled(linear(lambda net, x: F.linear(x, net.lin.weight.to(x.dtype), net.lin.bias.to(x.dtype))))
    handle.module.to(dtype)
    for _ in range(3):
        x = torch.randn(2, 4)
        torch.testing.assert_close(handle(x), own(handle, x))


def test_a_module_without_parameters() -> None:
    handle = compiled(nn.SiLU())
    for _ in range(2):
        x = torch.randn(3)
        torch.testing.assert_close(handle(x), F.silu(x))
    assert handle.engine.report.calls == {"traced": 1, "fused": 1}


# -- a module that can't be traced ---------------------------------------------------------------------------------


def test_random_numbers_are_drawn_as_eager_draws_them() -> None:
    net = linear(lambda net, x: F.dropout(net.lin(x), 0.5, training=True) + torch.randn(4))
    handle, x = compiled(net), torch.randn(2, 4)
    torch.manual_seed(1)
    results = [handle(x) for _ in range(3)]
    torch.manual_seed(1)
    assert all(torch.equal(result, Forward.forward(net, x)) for result in results)
    assert handle.engine.report.calls == {"traced": 1, "eager": 2}


def test_the_modules_own_error_surfaces_as_it_is() -> None:
    class Stop(Exception):
        pass

    def function(net: Any, x: torch.Tensor, stop: bool = False) -> torch.Tensor:
        if stop:
            net._stops.append(1)
            raise Stop("by the user")
        return net.lin(x)

    handle, x = compiled(linear(function)), torch.randn(2, 4)
    handle.module._stops = stops = []
    for _ in range(2):
        with pytest.raises(Stop, match="by the user") as caught:
            handle(x, stop=True)
        assert caught.value.__cause__ is None and caught.value.__context__ is None
    assert len(stops) == 2  # once each: a host's Cancel is not run again
    for _ in range(2):
        torch.testing.assert_close(handle(x), own(handle, x))
    assert handle.engine.report.calls == {"traced": 1, "fused": 1}


def test_an_error_of_torch_surfaces_as_it_is() -> None:
    handle = compiled(linear())
    for _ in range(2):
        with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
            handle(torch.randn(2, 5))
    x = torch.randn(2, 4)
    torch.testing.assert_close(handle(x), own(handle, x))


def test_an_error_that_only_the_recording_makes_does_not_surface() -> None:
    def picky(net: Any, x: torch.Tensor) -> torch.Tensor:
        if recording():
            torch.mm(x, x)  # fails
        return net.lin(x)

    handle, x = compiled(linear(picky)), torch.randn(2, 4)
    for _ in range(3):
        refuses(handle, "it failed while it was recorded: RuntimeError", x)


@pytest.mark.parametrize("width", [4, 5], ids=["only while it is recorded", "by itself"])
def test_what_a_failed_recording_held_goes_without_the_collector(width: int) -> None:
    """The call that follows, or the next model, needs the memory now."""

    def picky(net: Any, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        if recording():
            torch.mm(y, y)  # fails
        return net.lin(y)

    handle, x = compiled(linear(picky)), torch.randn(2, width)
    double = x * 2
    gc.collect()
    gc.disable()
    try:
        try:
            handle(x)
        except RuntimeError:
            assert width == 5
        tensors = [each for each in gc.get_objects() if type(each) is torch.Tensor and not each.is_meta]
        alike = [each for each in tensors if each.shape == x.shape]
        assert not [each for each in alike if each is not double and torch.equal(each, double)]
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "transform", [torch.vmap, lambda call: torch.func.vmap(torch.func.vmap(call))], ids=["vmap", "vmap twice"]
)
def test_an_error_that_the_recorder_raises_does_not_surface(transform: Any) -> None:
    """A batched tensor has no storage to ask for."""
    handle, x = compiled(linear(lambda net, x: transform(net.lin)(x))), torch.randn(2, 3, 4)
    for _ in range(3):
        torch.testing.assert_close(handle(x), own(handle, x))


# -- our own mistakes ----------------------------------------------------------------------------------------------


def wrong_gate(graph: torch.fx.Graph) -> int:
    for node in graph.nodes:
        if node.target is torch.mul:
            node.target = torch.add
    return 1


def behind(graph: torch.fx.Graph, target: Callable[..., Any], *args: Any) -> int:
    """Call a function on the result, which is said to be what it was."""
    output = graph.output_node()
    (result,) = output.args[0]
    with graph.inserting_before(output):
        wrong = graph.call_function(target, (result, *args))
    wrong.meta.update(result.meta)
    output.args = ((wrong,),)
    return 1


def wrong_shape(graph: torch.fx.Graph) -> int:
    return behind(graph, torch.narrow, 0, 0, 1)


def scaled(factor: float) -> Callable[[torch.fx.Graph], int]:
    return lambda graph: behind(graph, torch.mul, factor)


def put(monkeypatch: pytest.MonkeyPatch, wrong: Any) -> None:
    """A pass in the place of the one that fuses linear layers."""
    changed = [replace(item, run=wrong) if item.name == "fuse_linear" else item for item in pipeline.PASSES]
    monkeypatch.setattr(pipeline, "PASSES", tuple(changed))


def broken(graph: torch.fx.Graph) -> int:
    raise KeyError("val")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (wrong_gate, "from eager's (relative L2), at most 1e-03 is allowed"),
        (scaled(float("nan")), "the fused result is nan from eager's"),
        (wrong_shape, "the fused result is (1, 4, 8, 8) torch.float32, eager's (2, 4, 8, 8)"),
        (broken, "it can't be fused: KeyError: 'val'"),
    ],
)
def test_a_wrong_rewrite_is_caught_before_it_is_used(monkeypatch: pytest.MonkeyPatch, wrong: Any, words: str) -> None:
    net = UNet()
    before = state(net)
    put(monkeypatch, wrong)
    handle = compiled(net)
    for _ in range(3):
        inputs = UNet.inputs()
        assert torch.equal(handle(*inputs), own(handle, *inputs))
    assert handle.engine.report.calls == {"traced": 1, "eager": 2} and unchanged(net, before)
    assert words in str(handle.engine.report.signatures[0].eager_because)


@pytest.mark.parametrize(("tolerance", "path"), [(1e-2, "fused"), (None, "eager")])
def test_the_tolerance_can_be_set(monkeypatch: pytest.MonkeyPatch, tolerance: float | None, path: str) -> None:
    put(monkeypatch, scaled(1.005))
    handle = compiled(tolerance=tolerance)
    for _ in range(2):
        handle(*UNet.inputs())
    assert handle.engine.report.calls == {"traced": 1, path: 1}


@pytest.mark.parametrize("at", [1, 2, 4], ids=["in the proof", "at the second call", "later"])
def test_a_kernel_that_fails(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, at: int) -> None:
    from sfast_core.ops.attention import reference

    runs: list[int] = []
    works = reference.tokens_inside

    def tokens_inside(out: torch.Tensor) -> torch.Tensor:
        runs.append(1)
        if len(runs) > 4 * (at - 1):
            raise RuntimeError("CUDA error: an illegal memory access")
        return works(out)

    net = UNet()
    before = state(net)
    monkeypatch.setattr(reference, "tokens_inside", tokens_inside)
    handle = compiled(net)
    with caplog.at_level(logging.INFO, "fast_compile"):
        for _ in range(6):
            inputs = UNet.inputs()
            torch.testing.assert_close(handle(*inputs), own(handle, *inputs), rtol=1e-4, atol=1e-5)
    expected = {"traced": 1, "fused": at - 2, "eager": 7 - at} if at > 1 else {"traced": 1, "eager": 5}
    assert handle.engine.report.calls == {path: number for path, number in expected.items() if number}
    assert sum("illegal memory access" in record.message for record in caplog.records) == 1
    assert unchanged(net, before)
    other = UNet.inputs(size=16)
    monkeypatch.undo()
    for _ in range(2):
        torch.testing.assert_close(handle(*other), own(handle, *other), rtol=1e-4, atol=1e-5)
    assert handle.engine.report.calls["traced"] == 2 and handle.engine.report.calls["fused"] == max(at - 2, 0) + 1


def test_memory_that_runs_out_in_the_proof_is_a_passing_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    from sfast_core.ops.attention import reference

    works, failures = reference.tokens_inside, [torch.cuda.OutOfMemoryError("full")]

    def tokens_inside(out: torch.Tensor) -> torch.Tensor:
        if failures:
            raise failures.pop()
        return works(out)

    monkeypatch.setattr(reference, "tokens_inside", tokens_inside)
    handle = compiled()
    for _ in range(3):
        inputs = UNet.inputs()
        torch.testing.assert_close(handle(*inputs), own(handle, *inputs), rtol=1e-4, atol=1e-5)
    assert handle.engine.report.calls == {"traced": 2, "eager": 1, "fused": 1}
    assert list(handle.engine.report.reasons) == ["out of memory"]


@pytest.mark.parametrize("former", ["linear_act.triton", "linear_geglu.*", "linear_add.cublaslt", "*.triton_tma"])
def test_kernels_are_known_by_former_names(former: str) -> None:
    handle, x = compiled(linear(), disabled_impls=(former,)), torch.randn(2, 4)
    torch.testing.assert_close(handle(x), own(handle, x))
    assert handle.engine.report.signatures[0].eager_because is None


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor, options: Any) -> torch.Tensor:
        return x * 2


@pytest.mark.parametrize("depth", [1, 20_000])
def test_arguments_without_an_end_run_eager_with_the_reason(depth: int) -> None:
    options: list[Any] = []
    if depth == 1:
        options.append(options)
    for _ in range(depth):
        options = [options]
    handle, x = compiled(Scaled()), torch.randn(2, 3)
    for _ in range(2):
        assert torch.equal(handle(x, options), x * 2)
    report = handle.engine.report
    (reason,) = report.reasons
    assert dict(report.calls) == {"eager": 2} and ("holds itself" in reason or "containers in one another" in reason)
