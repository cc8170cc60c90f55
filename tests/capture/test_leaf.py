"""A layer whose weights nobody understands runs as it is, and the rest of the model around it is fused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfast_core import CompileConfig, CompiledModule, compile
from sfast_core.capture import Recorder, in_place_of
from sfast_core.capture.leaf import Leaf
from sfast_core.engine import Engine
from tests.quantised import Quantised
from tests.tracing import try_record


class Closed(torch.Tensor):
    """Numbers of 8 bits, as GGUF's: what they mean is known to the layer that has them."""

    scale: torch.Tensor

    @staticmethod
    def of(values: torch.Tensor) -> Closed:
        scale = values.abs().max() / 127
        closed = torch.Tensor._make_subclass(Closed, (values / scale).round().to(torch.int8))
        closed.scale = scale
        return closed

    def detach(self) -> Closed:
        detached = torch.Tensor._make_subclass(Closed, super().detach())
        detached.scale = self.scale
        return detached


class ClosedLinear(nn.Module):
    def __init__(self, layer: nn.Linear, make: Callable[[torch.Tensor], torch.Tensor] = Closed.of) -> None:
        super().__init__()
        self.weight = nn.Parameter(make(layer.weight.detach()), requires_grad=False)
        self.bias = layer.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        plain = self.weight.as_subclass(torch.Tensor)
        return F.linear(x, plain.to(x.dtype) * float(self.weight.scale), self.bias)  # a value that is read


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down, self.norm = nn.Linear(8, 16), nn.Linear(16, 8), nn.LayerNorm(8)
        self.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.down(F.silu(self.up(self.norm(x))))
        return x + self.down(F.silu(self.up(x)))


class Reading(Quantised):
    """One that says its parts, and reads their values."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.ops.aten.detach.default and float(args[-1]._params.scale.sum()) < 0:
            raise ValueError
        return super().__torch_dispatch__(func, types, args, kwargs)


def closed() -> Net:
    net = Net()
    net.up = ClosedLinear(net.up)  # type: ignore[assignment]
    return net


def check(handle: CompiledModule) -> None:
    x = torch.randn(2, 3, 8)
    with torch.no_grad():
        torch.testing.assert_close(handle(x), type(handle.module).forward(handle.module, x))


def test_the_layer_is_one_node() -> None:
    _, found = try_record(closed(), torch.randn(2, 3, 8))
    graph = found.graph  # type: ignore[union-attr]
    layers = [node for node in graph.nodes if isinstance(node.target, Leaf)]
    assert len(layers) == 2 and [str(node.meta["source"]) for node in layers[0].args[0]] == ["up.bias"]
    assert (
        layers[0].target.capturable == "the ClosedLinear up runs as it is: __float__ reads a tensor's value into Python"
    )
    assert sum(node.target is F.linear for node in graph.nodes) == 2


class Ranged(ClosedLinear):
    """Marks a range for a profiler, and reads no value."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.profiler.record_function("layer"):
            return F.linear(x, self.weight.as_subclass(torch.Tensor).to(x.dtype), self.bias)


def test_a_range_of_a_profilers_reads_no_value() -> None:
    _, found = try_record(nn.Sequential(Ranged(nn.Linear(8, 8))), torch.randn(2, 8))
    (layer,) = (node.target for node in found.graph.nodes if isinstance(node.target, Leaf))  # type: ignore[union-attr]
    assert layer.capturable == "the Ranged 0 runs as it is: its weight is a Closed"


def test_it_runs_with_what_it_has_then() -> None:
    handle = compile(closed(), CompileConfig(allow_cpu=True))
    check(handle), check(handle)
    up: Any = handle.module.up
    with torch.no_grad():
        up.bias.add_(1)
    check(handle)
    up.weight.scale = torch.tensor(0.5)
    check(handle)
    up.bias = nn.Parameter(torch.randn(16), requires_grad=False)
    check(handle)
    assert handle.engine.report.calls == {"traced": 1, "fused": 4}, handle.report().text()
    # nothing is known of it, so it may mean something else
    up.weight = nn.Parameter(Closed.of(torch.randn(16, 8)), requires_grad=False)
    check(handle)
    assert handle.engine.report.calls == {"traced": 2, "fused": 4}, handle.report().text()
    assert (
        torch.nn.Module.__call__ is torch.nn.Module._wrapped_call_impl
        or torch.nn.Module.__call__.__name__ == "_wrapped_call_impl"
    )


def test_a_class_that_can_not_be_recorded_by_its_parts() -> None:
    net = Net()
    net.up.weight = nn.Parameter(Reading.of(net.up.weight.detach()), requires_grad=False)
    handle = compile(net, CompileConfig(allow_cpu=True))
    check(handle), check(handle), check(handle)
    assert handle.engine.report.calls == {"eager": 1, "traced": 1, "fused": 1}, handle.report().text()
    net.up.weight = nn.Parameter(Reading.of(torch.randn(16, 8)), requires_grad=False)
    check(handle)
    assert handle.engine.report.calls == {"eager": 1, "traced": 1, "fused": 2}, handle.report().text()


def _changing(layer: Any, x: torch.Tensor) -> torch.Tensor:
    return F.linear(x.clamp_(-1, 1), layer.weight.as_subclass(torch.Tensor).to(x.dtype))


def _words(layer: Any, x: torch.Tensor) -> Any:
    return {"x": x}


@pytest.mark.parametrize(("forward", "reason"), [(_changing, "changes its arguments"), (_words, "returns a dict")])
def test_what_it_does_besides_ends_the_recording(forward: Callable[..., Any], reason: str) -> None:
    class Layer(ClosedLinear):
        def forward(self, x: torch.Tensor) -> Any:
            return forward(self, x)

    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = Layer(nn.Linear(8, 8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found = self.layer(x + 1)
            return found["x"] if isinstance(found, dict) else found

    _, found = try_record(Around(), torch.randn(2, 8))
    assert reason in found.reason  # type: ignore[union-attr]


class Brought(nn.Module):
    """A layer whose weight a host's function makes ready, which looks at attributes by names that it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ Host.ready(self)


class Host:
    @staticmethod
    def ready(layer: nn.Module) -> torch.Tensor:
        assert all(hasattr(layer, f"{name}_x"[:-2]) for name in layer._parameters)
        return layer.weight * 2


@pytest.mark.parametrize("unread", [False, True])
def test_what_a_hosts_function_asks_of_a_layer_may_stay_unwatched(unread: bool) -> None:
    """What it does to the weight is recorded all the same."""

    @contextmanager
    def scope(recorder: Recorder) -> Iterator[None]:
        def ready(original: Any, layer: nn.Module) -> torch.Tensor:
            with recorder.unread():
                return original(layer)  # type: ignore[no-any-return]

        with in_place_of(Host, "ready", ready) if unread else nullcontext():
            yield

    model = nn.Sequential(Brought()).eval()
    engine, x = Engine("Model", CompileConfig(allow_cpu=True), scope), torch.randn(2, 4)
    with torch.no_grad():
        for step in range(4):
            if step == 2:
                model[0].where_it_is = "elsewhere"
            torch.testing.assert_close(engine.call(model, model.forward, (x,), {}), x @ model[0].weight * 2)
    assert engine.report.calls["traced"] == (1 if unread else 2)


class Calls(nn.Linear):
    """A layer with a ``__call__`` of its own."""

    __call__ = nn.Module.__call__


def test_a_hooked_layer_runs_live_however_it_is_called() -> None:
    net = nn.Sequential(Calls(8, 8), nn.Linear(8, 8)).requires_grad_(False)
    handle, x = compile(net, CompileConfig(allow_cpu=True)), torch.ones(2, 8)
    with torch.no_grad():
        plain = net(x).clone()
        hook = net[0].register_forward_hook(lambda layer, args, result: result * 2)
        doubled = [net(x).clone() for _ in range(3)]
        hook.remove()
        for result in doubled:
            torch.testing.assert_close(result, net[1](2 * net[0](x)))
        for _ in range(3):
            torch.testing.assert_close(net(x), plain)
    assert handle.engine.report.calls["fused"] >= 4
