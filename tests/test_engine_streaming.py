"""Models of which a part isn't on the device, on a CPU: a pretended host says which weights are away, a backend that
only counts captures.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfast_core import CompileConfig, CompiledModule, compile
from sfast_core.runtime.graph_lifetimes import ENOUGH_CALLS
from sfast_core.runtime.graphs import DeviceGraphs
from sfast_core.runtime.streaming.copier import Copier
from sfast_core.weights import Held
from tests.callers import calls
from tests.models import Forward, UNet
from tests.streaming import LateCopier, PretendOffload, part_of

COPIERS = (Copier, LateCopier)


@pytest.fixture(params=COPIERS, ids=lambda copier: copier.__name__, autouse=True)
def _copies(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All is right whenever copies are made, between the moment from which and the one at which they have to be
    there.
    """
    make = request.param
    monkeypatch.setattr(
        "sfast_core.programs.streams.copier_for", lambda device: make() if make is Copier else make(device)
    )


def offloading(net: nn.Module, *names: str, **config: Any) -> tuple[CompiledModule, PretendOffload]:
    handle, offload = compile(net, CompileConfig(allow_cpu=True, **config)), PretendOffload(*names)
    handle.engine.store._offload = offload  # type: ignore[attr-defined]
    return handle, offload


def unet() -> UNet:
    torch.manual_seed(0)
    return UNet()


def check(handle: CompiledModule, *inputs: torch.Tensor) -> torch.Tensor:
    """A call gives what the module's own forward gives."""
    inputs = inputs or UNet.inputs()
    result = handle(*inputs)
    expected = type(handle.module).forward(handle.module, *inputs)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
    return result


@pytest.mark.parametrize("part", [0.3, 0.5, 0.9, 1.0])
def test_the_first_call_brings_one_by_one_and_later_ones_replay(graphs: DeviceGraphs, part: float) -> None:
    net = unet()
    handle, offload = offloading(net, *part_of(net, part), stream_budget_bytes=0)
    for _ in range(4):
        check(handle)
    assert calls(handle) == {"traced": 1, "replayed": 3}
    (report,) = handle.engine.report.signatures
    away = sum(tensor.nbytes for name, tensor in net.named_parameters() if name.startswith(offload.names))
    # what is packed with what is away comes with it
    all_of_it = sum(tensor.nbytes + 256 for tensor in net.parameters())
    assert report.captures == 1 and away <= report.streamed_bytes <= all_of_it
    assert 0 < report.ring_bytes < report.streamed_bytes and graphs.bytes >= report.ring_bytes
    assert "streams" in report.stream_lines()[0] and report.stream_lines()[0] in handle.report().text()
    assert all(name.startswith(offload.names) for name in offload.pinned)


@pytest.mark.parametrize("sampling", [False, True])
def test_a_new_graph_doesnt_take_the_memory_that_it_reads(graphs: DeviceGraphs, sampling: bool) -> None:
    """Where the budget is too small for both, or memory runs out: it would be replayed without."""
    net = unet()
    handle, offload = offloading(net, "", stream_budget_bytes=1 << 17, graph_budget_bytes=0)
    offload.begin() if sampling else offload.end()
    for _ in range(4):
        check(handle)
        assert not graphs.evictions
    assert calls(handle) == {"traced": 1, "replayed": 3} and handle.engine.report.signatures[0].captures == 1


def test_the_same_bits_as_with_all_there(graphs: DeviceGraphs) -> None:
    inputs = UNet.inputs()
    whole = [offloading(unet())[0](*inputs) for _ in range(2)]
    net = unet()
    handle, _ = offloading(net, *part_of(net, 0.7), stream_budget_bytes=0)
    assert all(torch.equal(handle(*inputs), whole[0]) for _ in range(4)) and torch.equal(*whole)


def test_another_part_is_a_new_graph_and_no_new_trace(graphs: DeviceGraphs) -> None:
    net, inputs = unet(), UNet.inputs()
    handle, offload = offloading(net, stream_budget_bytes=0)
    expected = handle(*inputs)
    seen = []
    for part in (0.0, 0.5, 0.5, 0.9, 1.0, 0.2, 0.0, 0.0, 0.6):
        offload.names = part_of(net, part)
        # as if it had moved: what the host does is found by addresses
        net.conv_in.weight.data = net.conv_in.weight.data.clone()
        for _ in range(ENOUGH_CALLS):
            assert torch.equal(handle(*inputs), expected)
        seen.append(handle.engine.report.signatures[0].streamed_bytes)
    assert calls(handle)["traced"] == 1 and "eager" not in calls(handle), handle.engine.report.reasons
    assert seen[0] == seen[6] == seen[7] == 0 and seen[1] <= seen[2] < seen[3] < seen[4] and 0 < seen[5] < seen[1]
    assert calls(handle)["fused"] == 1, "one call to see what is made of weights"


def test_what_is_written_to_the_hosts_memory_is_read(graphs: DeviceGraphs) -> None:
    net = unet()
    handle, _ = offloading(net, *part_of(net, 0.5), stream_budget_bytes=0)
    for _ in range(3):
        check(handle)
    for tensor in net.parameters():
        tensor.mul_(0.9)
    check(handle)
    assert handle.engine.report.signatures[0].captures == 1


def test_memory_that_moved_is_captured_anew(graphs: DeviceGraphs) -> None:
    net = unet()
    handle, _ = offloading(net, "", stream_budget_bytes=0)
    for _ in range(3):
        check(handle)
    for name in ("res1.conv1", "blocks.1.attn1.to_q"):
        net.get_submodule(name).weight = nn.Parameter(net.get_submodule(name).weight * 1.5, requires_grad=False)
        for _ in range(ENOUGH_CALLS):
            check(handle)
        net.get_submodule(name).weight.data = net.get_submodule(name).weight.data * 0.5
        for _ in range(ENOUGH_CALLS):
            check(handle)
    assert handle.engine.report.signatures[0].captures == 5 and calls(handle)["traced"] == 1


def test_the_ring_goes_as_graphs_go_and_comes_back(graphs: DeviceGraphs) -> None:
    net = unet()
    handle, _ = offloading(net, *part_of(net, 0.5), stream_budget_bytes=0)
    for _ in range(3):
        check(handle)
    assert graphs.release_all() > 0 and graphs.bytes == 0
    check(handle)
    ring = handle.engine.report.signatures[0].ring_bytes
    assert graphs.bytes > ring > 0 and handle.engine.report.signatures[0].captures == 2
    graphs.evict(1)
    for _ in range(2):
        check(handle)
    assert "eager" not in calls(handle)


def test_signatures_share_one_ring(graphs: DeviceGraphs) -> None:
    net = unet()
    handle, _ = offloading(net, "", stream_budget_bytes=0)
    for size in (8, 16, 8, 16, 8, 16):
        check(handle, *UNet.inputs(size=size))
    rings = [kept for kept in graphs._graphs.values() if hasattr(kept, "memory")]
    assert len(rings) == 1 and calls(handle) == {"traced": 2, "replayed": 4}


def test_what_the_host_computes_of_weights_is_computed_on_arrival(graphs: DeviceGraphs) -> None:
    """No graph: it may be anything. Gone, the next call is captured; another one is another result."""
    net, inputs = unet(), UNet.inputs()
    handle, offload = offloading(net, *part_of(net, 0.5), stream_budget_bytes=0)
    plain = [handle(*inputs) for _ in range(3)][0]
    delta = {
        name: torch.randn_like(net.get_parameter(name)) * 0.1
        for name in ("blocks.0.attn1.to_k.weight", "res1.conv1.weight", "conv_out.bias")
    }

    def added(name: str, factor: float) -> Any:
        return lambda weight: weight.add_(delta[name], alpha=factor)

    def changed(factor: float) -> torch.Tensor:
        other = unet()
        for name, tensor in delta.items():
            other.get_parameter(name).data.add_(tensor, alpha=factor)
        return offloading(other)[0](*inputs)

    for factor in (1.0, 2.0):
        offload.computed = {name: (added(name, factor),) for name in delta}
        expected = changed(factor)
        for _ in range(3):
            assert torch.equal(handle(*inputs), expected)
    offload.computed = {}
    assert torch.equal(handle(*inputs), plain) and torch.equal(handle(*inputs), plain)
    assert calls(handle)["traced"] == 1 and "eager" not in calls(handle)
    assert handle.engine.report.signatures[0].captures == 2


def test_what_the_host_computes_is_captured_where_all_that_it_reads_stays(graphs: DeviceGraphs) -> None:
    """As :class:`Held`: another one is another graph, and what was read lives as long as the graph does."""
    net, inputs = unet(), UNet.inputs()
    handle, offload = offloading(net, *part_of(net, 0.5), stream_budget_bytes=0)
    offload.held = lambda functions, device: tuple(map(Held, functions))  # type: ignore[method-assign]
    plain = [handle(*inputs) for _ in range(3)][0]
    name = "blocks.0.attn1.to_k.weight"
    kept = []
    for factor in (1.0, 2.0):
        delta = torch.randn_like(net.get_parameter(name)) * 0.1
        kept.append(weakref.ref(delta))
        offload.computed = {name: (lambda weight, delta=delta, factor=factor: weight.add_(delta, alpha=factor),)}
        other = unet()
        other.get_parameter(name).data.add_(delta, alpha=factor)
        expected = offloading(other)[0](*inputs)
        for _ in range(ENOUGH_CALLS):
            assert torch.equal(handle(*inputs), expected)
        del delta
    assert (
        calls(handle) == {"traced": 1, "replayed": 2 + 2 * ENOUGH_CALLS}
        and handle.engine.report.signatures[0].captures == 3
    )
    offload.computed = {}
    assert kept[0]() is None and kept[1]() is not None, "the graph reads it"
    assert torch.equal(handle(*inputs), plain) and kept[1]() is None


def test_an_error_that_the_hosts_function_swallows_is_no_graph_without_its_lora(graphs: DeviceGraphs) -> None:
    """The call runs without a graph then, and what the host does to other weights may be captured still."""
    net, inputs = unet(), UNet.inputs()
    handle, offload = offloading(net, "", stream_budget_bytes=0)
    offload.held = lambda functions, device: tuple(map(Held, functions))  # type: ignore[method-assign]
    for _ in range(3):
        check(handle)

    def reads(weight: torch.Tensor) -> torch.Tensor:
        with contextlib.suppress(RuntimeError):
            weight.mul_(1 + weight.abs().max().item())
        return weight

    offload.computed = {"conv_out.bias": (reads,)}
    other = unet()
    reads(other.conv_out.bias.data)
    for _ in range(3):
        assert torch.equal(handle(*inputs), offloading(other)[0](*inputs))
    assert calls(handle) == {"traced": 1, "replayed": 2, "fused": 3}
    offload.computed = {}
    for _ in range(2):
        check(handle)
    assert calls(handle)["replayed"] == 4


def test_views_of_a_weight_keep_its_slot(graphs: DeviceGraphs) -> None:
    """What lies in a weight's memory is read long after the weight itself: its slot isn't overwritten before."""

    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        early = net.first.weight.t()[:8]
        for layer in net.layers:
            x = torch.tanh(layer(x))
        return x @ early.t() @ early

    torch.manual_seed(1)
    net = Forward(
        forward, first=nn.Linear(16, 16), layers=nn.ModuleList([nn.Linear(16, 16, bias=False) for _ in range(12)])
    )
    handle, _ = offloading(net, "first", "layers", stream_budget_bytes=0)
    for _ in range(4):
        check(handle, torch.randn(3, 16))
    assert calls(handle) == {"traced": 1, "replayed": 3}


def test_a_result_that_is_a_weight(graphs: DeviceGraphs) -> None:
    net = Forward(lambda net, x: (net.a(x), net.b.weight.t(), net.b.weight), a=nn.Linear(4, 4), b=nn.Linear(4, 4))
    handle, _ = offloading(net, "", stream_budget_bytes=0)
    for _ in range(3):
        x = torch.randn(2, 4)
        for mine, theirs in zip(handle(x), Forward.forward(net, x), strict=True):
            torch.testing.assert_close(mine, theirs)


def test_a_weight_that_is_cast_where_it_is_used(graphs: DeviceGraphs) -> None:
    """What the host computes of it, it computes of the cast one."""
    net = Forward(
        lambda net, x: F.linear(x, net.a.weight.to(torch.float32)) + F.linear(x, net.b.weight),
        a=nn.Linear(8, 8).half(),
        b=nn.Linear(8, 8),
    )
    handle, offload = offloading(net, "", stream_budget_bytes=0)
    for _ in range(3):
        check(handle, torch.randn(2, 8))
    seen = []
    offload.computed = {"a.weight": (lambda weight: seen.append(weight.dtype) or weight * 2,)}
    x = torch.randn(2, 8)
    result = handle(x)
    torch.testing.assert_close(result, F.linear(x, net.a.weight.float() * 2) + F.linear(x, net.b.weight))
    assert set(seen) == {torch.float32} and calls(handle)["traced"] == 1


def test_a_layer_whose_memory_has_gaps_runs_as_it_was(graphs: DeviceGraphs) -> None:
    net = Forward(lambda net, x: net.lin(x), lin=nn.Linear(4, 4))
    net.lin.weight = nn.Parameter(torch.randn(4, 8)[:, ::2], requires_grad=False)
    handle, _ = offloading(net, "lin")
    check(handle, torch.randn(2, 4))
    assert calls(handle) == {"eager": 1, "traced": 1} and "its memory has gaps" in next(
        iter(handle.engine.report.reasons)
    )


def test_what_says_no_more_than_how_weights_are_brought_does_not_steer(graphs: DeviceGraphs) -> None:
    """A host's leaf adapter says which attributes of layers these are: they may change, and what is in them, where a
    layer goes through all, too.
    """

    class Layer(nn.Linear):
        brought = False
        functions: ClassVar[list[Any]] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            weight = self.weight
            if self.brought or len(self.functions) > 0 or "scale" in list(vars(self)):
                weight = weight.view(weight.shape)
            return F.linear(x, weight, self.bias)

    left = frozenset[str]()

    @contextlib.contextmanager
    def scope(recorder: Any) -> Iterator[None]:
        recorder.left_to_host = left
        yield

    for names, traced in ((frozenset({"brought", "functions"}), 1), (frozenset(), 4)):
        left = names
        net = Forward(lambda net, x: net.b(torch.tanh(net.a(x))), a=Layer(4, 4), b=Layer(4, 4))
        handle, _ = offloading(net, "")
        handle.engine.tracer._leaf_scope = scope  # type: ignore[attr-defined]
        check(handle, torch.randn(2, 4))
        net.a.brought = True
        check(handle, torch.randn(2, 4))
        net.a.functions = [1]
        check(handle, torch.randn(2, 4))
        net.a.functions.append(2)
        check(handle, torch.randn(2, 4))
        assert calls(handle)["traced"] == traced


def test_without_graphs_it_streams_all_the_same() -> None:
    net = unet()
    with torch.no_grad():
        handle, _ = offloading(net, *part_of(net, 0.5), stream_budget_bytes=0)
        for _ in range(3):
            check(handle)
    assert calls(handle) == {"traced": 1, "fused": 2} and handle.engine.report.signatures[0].ring_bytes > 0
