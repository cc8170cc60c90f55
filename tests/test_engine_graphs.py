"""The engine with CUDA graphs, on a CPU with a backend that only counts."""

from __future__ import annotations

import contextlib
import gc
import logging
import re
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core import CompileConfig, CompiledModule, compile
from sfast_core.runtime.graph_lifetimes import ENOUGH_CALLS
from sfast_core.runtime.graphs import DeviceGraphs
from tests.callers import calls
from tests.models import Forward, UNet


def compiled(net: nn.Module | None = None, **config: Any) -> CompiledModule:
    torch.manual_seed(0)
    return compile(net or UNet(), CompileConfig(allow_cpu=True, **config))


def check(handle: CompiledModule, *inputs: torch.Tensor) -> None:
    """A call gives what the module's own forward gives."""
    inputs = inputs or UNet.inputs()
    result = handle(*inputs)
    expected = type(handle.module).forward(handle.module, *inputs)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)


def signature(handle: CompiledModule, index: int = 0) -> Any:
    return handle.engine.report.signatures[index]


@pytest.mark.parametrize("after", [2, 4])
def test_it_traces_runs_fused_then_captures_and_replays(graphs: DeviceGraphs, after: int) -> None:
    handle = compiled(capture_after=after)
    for _ in range(6):
        check(handle)
    expected = {"traced": 1, "fused": after - 2, "replayed": 7 - after}
    assert calls(handle) == {path: number for path, number in expected.items() if number}
    assert (signature(handle).captures, graphs.captures) == (1, 1) and signature(handle).graph_bytes == graphs.bytes > 0
    assert handle.engine.report.graph_bytes == graphs.bytes and handle.engine.graphs is graphs


@pytest.mark.parametrize("cuda_graphs", [True, False])
def test_the_log_has_a_line_when_a_model_is_fast(
    graphs: DeviceGraphs, caplog: pytest.LogCaptureFixture, cuda_graphs: bool
) -> None:
    """Of its first signature; of the next where somebody debugs."""
    handle = compiled(cuda_graphs=cuda_graphs)
    with caplog.at_level(logging.DEBUG, "fast_compile"):
        for size in (8, 8, 16, 16):
            handle(*UNet.inputs(size=size))
    lines = [record for record in caplog.records if "is fast now" in record.message]
    assert [record.levelno for record in lines] == [logging.INFO, logging.DEBUG]
    words = "UNet is fast now: traced in [0-9.]+ s, fused in [0-9.]+ s" + (
        ", captured in [0-9.]+ s" if cuda_graphs else ""
    )
    assert all(re.fullmatch(f"Fast Compile: {words}", record.message) for record in lines), lines


def test_results_stay_when_the_next_call_replays(graphs: DeviceGraphs) -> None:
    handle = compiled()
    inputs = UNet.inputs()
    results = [handle(inputs[0] * factor, *inputs[1:]) for factor in (1.0, 2.0, 3.0, 4.0)]
    copies = [result.clone() for result in results]
    handle(*UNet.inputs())
    assert all(torch.equal(a, b) for a, b in zip(results, copies, strict=True)) and not torch.equal(
        results[2], results[3]
    )
    assert torch.equal(handle(*inputs), handle(*inputs))


def test_weights_written_in_place_need_no_capture(graphs: DeviceGraphs) -> None:
    handle = compiled()
    for _ in range(3):
        check(handle)
    for name in ("blocks.0.attn1.to_q", "blocks.0.gate", "conv_in", "res1.emb"):
        handle.module.get_submodule(name).weight.mul_(1.5)
        check(handle)
    assert graphs.captures == 1 and calls(handle) == {"traced": 1, "replayed": 6}


@pytest.mark.parametrize(
    "name", ["blocks.0.attn1.to_q", "blocks.1.attn2.to_k", "conv_in", "blocks.0.norm1", "res1.skip"]
)
def test_a_replaced_weight_is_captured_again_without_a_trace(graphs: DeviceGraphs, name: str) -> None:
    handle = compiled()
    layer = handle.module.get_submodule(name)
    for _ in range(2):
        check(handle)
    original = layer.weight
    layer.weight = nn.Parameter(layer.weight.detach() * 1.5)
    check(handle)
    check(handle)
    assert graphs.captures == 2 and len(graphs._graphs) == 1
    layer.weight = original  # the LoRA is taken off again
    check(handle)
    check(handle)
    assert calls(handle)["traced"] == 1 and "eager" not in calls(handle)


@pytest.mark.parametrize("evicted", [False, True])
def test_graphs_that_live_for_few_calls_are_captured_no_more(graphs: DeviceGraphs, evicted: bool) -> None:
    """A card that has no room for all models: the host brings weights anew for each picture of four steps, or takes the
    graph's memory. Graphs come back when they may stay, and for good where pictures have more steps.
    """
    handle = compiled()
    layer = handle.module.blocks[0].norm1

    def picture(steps: int) -> None:
        for _ in range(steps):
            check(handle)
        if evicted:
            graphs.release_all()
        else:
            layer.weight = nn.Parameter(layer.weight.detach() * 0.9)

    for _ in range(4):
        picture(4)
    served = calls(handle)
    assert graphs.captures == 2 and served == {"traced": 1, "replayed": 7, "fused": 8}
    assert "before they had served 8 calls" in str(signature(handle).not_captured_because) and not graphs._graphs
    picture(ENOUGH_CALLS + 4)
    assert graphs.captures == 3 and calls(handle)["replayed"] > 7 and not signature(handle).not_captured_because


@pytest.mark.parametrize("capture_after", [2, 100])
def test_a_weight_of_another_shape_is_traced_anew(graphs: DeviceGraphs, capture_after: int) -> None:
    """A patch may widen a weight between two layers: the signature of a call doesn't tell."""
    layers = {"one": nn.Linear(4, 6), "two": nn.Linear(6, 4)}
    handle = compiled(Forward(lambda net, x: net.two(net.one(x).relu()), **layers), capture_after=capture_after)
    one, two, x = handle.module.one, handle.module.two, torch.randn(2, 4)
    for width in (6, 9, 6):
        one.weight, one.bias = nn.Parameter(torch.randn(width, 4)), nn.Parameter(torch.randn(width))
        two.weight = nn.Parameter(torch.randn(4, width))
        for _ in range(3):
            check(handle, x)
    how = "replayed" if capture_after == 2 else "fused"
    assert calls(handle) == {"traced": 3, how: 6} and len(graphs._graphs) == (how == "replayed")


@pytest.mark.parametrize("capture_after", [2, 100])
def test_a_bias_that_comes_and_goes_is_traced_anew(graphs: DeviceGraphs, capture_after: int) -> None:
    """A LoRA may bring one, and takes it along when it goes."""
    handle = compiled(
        Forward(lambda net, x: net.lin(x).relu(), lin=nn.Linear(4, 4, bias=False)), capture_after=capture_after
    )
    layer, x = handle.module.lin, torch.randn(2, 4)
    for bias in (None, torch.randn(4), None, torch.randn(4)):
        layer.bias = None if bias is None else nn.Parameter(bias)
        for _ in range(3):
            check(handle, x)
    assert (
        calls(handle) == {"traced": 4, "replayed" if capture_after == 2 else "fused": 8}
        and not handle.engine.report.reasons
    )


def test_a_model_that_the_host_has_moved_away_runs_eager_and_frees_its_graph(graphs: DeviceGraphs) -> None:
    handle = compiled(Forward(lambda net, x: net.lin(x).relu(), lin=nn.Linear(4, 4)))
    x = torch.randn(2, 4)
    check(handle, x)
    check(handle, x)
    weight = handle.module.lin.weight
    handle.module.lin.weight = nn.Parameter(weight.to("meta"))
    with contextlib.suppress(Exception):  # what eager makes of it is its own business
        handle(x)
    assert graphs.bytes == 0 and "the weight lin.weight is on meta, not on cpu" in handle.engine.report.reasons
    handle.module.lin.weight = weight
    check(handle, x)
    assert graphs.captures == 2 and calls(handle) == {"traced": 1, "replayed": 2, "eager": 1}


def test_graphs_that_the_host_took_come_back(graphs: DeviceGraphs) -> None:
    handle = compiled()
    for take in (graphs.release_all, handle.engine.release_graphs, handle.engine.restore):
        for _ in range(ENOUGH_CALLS + 1):
            check(handle)
        take()
        assert graphs.bytes == 0
    check(handle)
    graphs.release_all()
    handle.engine.forget_evicted()
    assert signature(handle).graph_bytes == 0
    check(handle)
    assert calls(handle)["traced"] == 1 and graphs.captures == 5


def test_a_small_budget_keeps_the_graph_used_last(graphs: DeviceGraphs) -> None:
    handle = compiled(graph_budget_bytes=1)
    small, large = UNet.inputs(size=8), UNet.inputs(size=16)
    for _ in range(3):
        check(handle, *small)
        check(handle, *large)
    assert len(graphs._graphs) == 1 and graphs.captures == 4 and calls(handle) == {"traced": 2, "replayed": 4}


def test_a_capture_that_fails_is_not_tried_again(graphs: DeviceGraphs, caplog: pytest.LogCaptureFixture) -> None:
    handle = compiled()
    graphs.backend.failures = [RuntimeError("an illegal operation")]
    with caplog.at_level(logging.INFO, "fast_compile"):
        for _ in range(4):
            check(handle)
    assert calls(handle) == {"traced": 1, "fused": 3} and graphs.captures == 0
    assert signature(handle).not_captured_because == "capturing failed: an illegal operation"
    assert sum("capturing failed" in record.message for record in caplog.records) == 1


def test_out_of_memory_at_a_capture_runs_fused_and_is_tried_again_ever_later(graphs: DeviceGraphs) -> None:
    first, second = compiled(), compiled()
    for _ in range(2):
        check(first)
    check(second)
    graphs.backend.failures = [torch.cuda.OutOfMemoryError("full")] * 2
    check(second)
    # the other graphs went first, and still it was too little
    assert graphs.bytes == 0 and calls(second) == {"traced": 1, "fused": 1}
    check(first)
    assert calls(first)["replayed"] == 2
    graphs.backend.failures = [torch.cuda.OutOfMemoryError("full")] * 2
    for fused in (2, 3, 4):  # fails once more at the first of these calls, then two calls don't even try
        check(second)
        assert calls(second)["fused"] == fused and not graphs.backend.failures
    check(second)
    assert calls(second)["replayed"] == 1


def test_without_graphs_nothing_is_captured(graphs: DeviceGraphs) -> None:
    handle = compiled(cuda_graphs=False)
    for _ in range(3):
        check(handle)
    assert graphs.captures == 0 and calls(handle) == {"traced": 1, "fused": 2}
    assert signature(handle).not_captured_because == "turned off in the settings"


def test_a_change_below_the_module_releases_what_was_captured(graphs: DeviceGraphs) -> None:
    handle = compiled()
    for _ in range(2):
        check(handle)
    handle.module.blocks[0].attn1.heads = 4
    check(handle)
    assert graphs.bytes == 0 and calls(handle)["traced"] == 2
    check(handle)
    assert graphs.captures == 2


def test_a_graph_is_replayed_while_the_module_is_looked_at(graphs: DeviceGraphs) -> None:
    """What it has made is dropped where the module has changed. It isn't where its weights are others."""
    handle = compiled()
    for _ in range(3):
        check(handle)
    backend, layer, x = graphs.backend, handle.module.conv_in, UNet.inputs()
    kept = layer.weight
    layer.weight = nn.Parameter(kept.detach() * 1.5)
    backend.events.clear()
    check(handle, *x)
    assert backend.events.count("replay") == 1 and backend.events.index("capture") < backend.events.index("replay")
    handle.module.blocks[0].attn1.heads = 4
    backend.events.clear()
    check(handle, *x)
    assert backend.events.count("replay") == 1 and calls(handle) == {"traced": 2, "replayed": 3}


def test_a_graph_whose_weights_lie_elsewhere_is_not_replayed(graphs: DeviceGraphs) -> None:
    """Where it reads them may be another's memory by now, or nobody's."""
    handle = compiled()
    for _ in range(2):
        check(handle)
    weight, events = handle.module.conv_in.weight, graphs.backend.events
    weight.data = weight.detach() * 1.5
    events.clear()
    check(handle)
    assert events.index("capture") < events.index("replay") and events.count("replay") == 1


def test_a_replay_that_fails_is_said_once(graphs: DeviceGraphs, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = compiled()
    for _ in range(2):
        check(handle)

    def fail() -> None:
        raise RuntimeError("the GPU is lost")

    ((_, captured),) = graphs._graphs.items()
    monkeypatch.setattr(captured._replayable, "replay", fail)
    for _ in range(2):
        check(handle)
    assert calls(handle) == {"traced": 1, "replayed": 1, "eager": 2}
    assert list(handle.engine.report.reasons) == ["the fused forward failed: RuntimeError: the GPU is lost"]


def test_uninstall_releases_the_graphs(graphs: DeviceGraphs) -> None:
    handle = compiled()
    for size in (8, 8, 16, 16):
        check(handle, *UNet.inputs(size=size))
    assert len(graphs._graphs) == 2
    handle.uninstall()
    assert graphs.bytes == 0 and handle.engine.report.graph_bytes == 0


def test_the_oldest_signature_goes_with_its_graph(graphs: DeviceGraphs) -> None:
    handle = compiled(max_signatures=2)
    for size in (8, 8, 16, 16, 24, 24):
        check(handle, *UNet.inputs(size=size))
    assert len(graphs._graphs) == 2 and [report.inputs[:20] for report in handle.engine.report.signatures] == [
        "float32[2, 4, 16, 16",
        "float32[2, 4, 24, 24",
    ]


def test_deleting_a_module_frees_it_and_its_graphs_without_the_collector(graphs: DeviceGraphs) -> None:
    net = UNet()
    net.table = torch.ones(4, 1, 1)  # a plain attribute of the root
    net.forward = lambda *inputs: UNet.forward(alive[0](), *inputs) + alive[0]().table  # type: ignore[method-assign]
    alive: list[Any] = [
        weakref.ref(net),
        weakref.ref(net.conv_in),
        weakref.ref(net.table),
        weakref.ref(net.norm_out.weight),
    ]
    handle = compiled(net)
    inputs = UNet.inputs()
    for _ in range(3):
        handle(*inputs)
    assert calls(handle) == {"traced": 1, "replayed": 2} and graphs.bytes
    alive += [weakref.ref(handle.engine), weakref.ref(handle.module.blocks[0].attn1.to_q.weight)]
    gc.collect()
    gc.disable()
    try:
        del net, handle
        assert [ref() for ref in alive] == [None] * len(alive) and graphs.bytes == 0
    finally:
        gc.enable()


Z = torch.complex(torch.arange(24.0).view(2, 3, 4), torch.arange(24.0).view(2, 3, 4) + 1)
COMPLEX = {
    "adjoint": lambda z: z.adjoint(),
    "torch.adjoint": lambda z: torch.adjoint(z) * 2,
    "mH": lambda z: z.mH * 2,
    "H": lambda z: z[0].H * 2,
    "mT": lambda z: z.mT * 2,
    "conj": lambda z: z.conj() * 2,
    "conj twice": lambda z: z.conj().transpose(0, 1).conj(),
    "a copy of a conjugate as pairs": lambda z: torch.view_as_real(z.conj().clone()),
    "resolved, as pairs": lambda z: torch.view_as_real(z.conj().clone().resolve_conj()) * 2,
    "negated imaginary part": lambda z: z.conj().imag.unsqueeze(0) * 2,
    "matmul with its adjoint": lambda z: z @ z.adjoint(),
    "rotation": lambda z: torch.view_as_real(z * torch.polar(torch.ones(4), torch.arange(4.0))).flatten(2),
    "real part": lambda z: z.real.float() - z.imag,
}
INPUTS = {
    "plain": lambda z: z,
    "conjugated": lambda z: z.conj(),
    "of a negated part": lambda z: torch.view_as_complex(torch.stack([z.real, z.imag], -1)).conj(),
}


@pytest.mark.parametrize("given", INPUTS)
@pytest.mark.parametrize("name", COMPLEX)
def test_complex_numbers_keep_both_parts(graphs: DeviceGraphs, name: str, given: str) -> None:
    handle = compiled(Forward(lambda net, z: COMPLEX[name](z)))
    for factor in (1, 2, 1j, 3):
        z = INPUTS[given](Z * factor)
        result, expected = handle(z), COMPLEX[name](z)
        assert torch.equal(result, expected), factor
    assert calls(handle) == {"traced": 1, "replayed": 3}


def test_an_input_that_is_conjugated_lazily_is_another(graphs: DeviceGraphs) -> None:
    handle = compiled(Forward(lambda net, z: torch.view_as_real(z.conj() if z.is_conj() else z) * 2))
    for z in (Z, Z.conj(), Z * 2, Z.conj() * 2, (Z * 2).conj()):
        assert torch.equal(handle(z), type(handle.module).forward(handle.module, z))
    real = compiled(Forward(lambda net, x: x * (2 if x.is_neg() else 3)))
    for x in (Z.imag, Z.conj().imag, Z.imag, Z.conj().imag):
        assert torch.equal(real(x), type(real.module).forward(real.module, x))
    assert calls(handle)["traced"] == calls(real)["traced"] == 2
