"""Parameters of classes of their own that leave all to torch, with what their numbers mean beside them, as
bitsandbytes' are: recorded as they are.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from sfast_core import CompileConfig, CompiledModule, compile
from sfast_core.weights.part import has_parts, is_plain
from tests.tracing import try_record


class Scales:
    """What a weight's numbers are multiplied by."""

    def __init__(self, scale: torch.Tensor, zero: float = 0.0) -> None:
        self.scale, self.zero = scale, zero


class Marked(nn.Parameter):
    """As bitsandbytes' weights of 8 bits: it says nothing of how to compute with it."""

    state: Scales

    def __new__(cls, numbers: torch.Tensor, state: Scales) -> Marked:
        made: Marked = torch.Tensor._make_subclass(cls, numbers, False)
        made.state = state
        return made

    @classmethod
    def of(cls, values: torch.Tensor, zero: float = 0.0) -> Marked:
        scale = values.abs().amax(1, keepdim=True) / 127
        return cls((values / scale).round().to(torch.int8), Scales(scale, zero))


class Halving(Marked):
    """As bitsandbytes' of 4 bits, which keep their state where they are split."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})
        return tuple(cls(part, args[0].state) for part in result) if func is torch.chunk else result


class Layer(nn.Module):
    def __init__(self, layer: nn.Linear, kind: type[Marked]) -> None:
        super().__init__()
        self.weight, self.bias = kind.of(layer.weight.detach()), layer.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = self.weight.state  # type: ignore[attr-defined]
        return F.linear(x, (self.weight.to(x.dtype) - state.zero) * state.scale, self.bias)


class Net(nn.Module):
    def __init__(self, kind: type[Marked]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = Layer(nn.Linear(8, 16), kind), Layer(nn.Linear(16, 8), kind)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # as T5 asks its layers
        asked = x.to(torch.float32) if self.down.weight.dtype is not torch.float16 else x.half()
        return x + self.down(F.gelu(self.up(asked)))


def check(handle: CompiledModule) -> None:
    x = torch.randn(2, 3, 8)
    with torch.no_grad():
        expected = type(handle.module).forward(handle.module, x)
        torch.testing.assert_close(handle(x), expected)


def test_which_they_are() -> None:
    for kind in (Marked, Halving):
        weight = kind.of(torch.randn(4, 4))
        assert is_plain(weight) and not has_parts(weight)
    assert not is_plain(torch.randn(2).as_subclass(type("Own", (torch.Tensor,), {})))


def test_each_is_recorded_in_full() -> None:
    for kind in (Marked, Halving):
        _, found = try_record(Net(kind), torch.randn(2, 3, 8))
        graph = found.graph  # type: ignore[union-attr]
        assert sum(node.target in (F.linear, torch._C._nn.linear) for node in graph.nodes) == 2
        read = {str(node.meta["source"]) for node in graph.nodes if "source" in node.meta and node.users}
        assert {"up.weight", "down.weight", "up.bias", "down.bias"} < read


def test_what_changes_is_seen() -> None:
    for kind in (Marked, Halving):
        handle = compile(Net(kind), CompileConfig(allow_cpu=True))
        check(handle), check(handle)
        assert handle.engine.report.calls == {"traced": 1, "fused": 1}, handle.report().text()
        up: Any = handle.module.up
        with torch.no_grad():
            up.weight.copy_(torch.randint(-127, 128, (16, 8), dtype=torch.int8))
            check(handle)
            up.weight.state.scale.mul_(2)
            check(handle)
        assert handle.engine.report.calls == {"traced": 1, "fused": 3}, handle.report().text()
        up.weight = kind.of(torch.randn(16, 8))  # other numbers, and another object beside them
        check(handle)
        up.weight.state.scale = torch.rand(16, 1)
        check(handle)
        up.weight.state.zero = 3.0
        check(handle)
        up.weight = kind.of(torch.randn(16, 8), zero=-5.0)
        check(handle), check(handle)
        assert not handle.engine.report.calls["eager"], handle.report().text()


class Dequantising(Marked):
    """One that does compute by itself: what it does with torch's functions is what is recorded, never the function that
    was called.
    """

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear:
            x, weight, *rest = args
            with torch._C.DisableTorchFunctionSubclass():
                return F.linear(x, weight.to(x.dtype) * 3, *rest)
        return super().__torch_function__(func, types, args, kwargs or {})


def test_one_that_computes_by_itself() -> None:
    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = Dequantising.of(torch.randn(16, 8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.linear(x + 1, self.weight)

    handle = compile(Around(), CompileConfig(allow_cpu=True))
    check(handle), check(handle)
    handle.module.weight = Dequantising.of(torch.randn(16, 8))
    check(handle)
    assert handle.engine.report.calls == {"traced": 1, "fused": 2}, handle.report().text()


class Shaped(Marked):
    """As Forge's, of GGUF's bytes: it says that it has another shape than its memory."""

    @property
    def shape(self) -> torch.Size:  # type: ignore[override]
        return torch.Size((self.numel() // 16, 16))


def test_one_that_has_another_shape_than_its_memory_is_a_layers_own_affair() -> None:
    class ShapedLayer(Layer):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            state = self.weight.state  # type: ignore[attr-defined]
            return F.linear(x, self.weight.data.reshape(-1, 8).to(x.dtype) * state.scale, self.bias)

    net = Net(Marked)
    net.up = ShapedLayer(nn.Linear(8, 16), Shaped)
    assert not is_plain(net.up.weight)
    handle = compile(net, CompileConfig(allow_cpu=True))
    check(handle), check(handle)
    net.up.weight = Shaped.of(torch.randn(16, 8))
    check(handle), check(handle)
    calls = handle.engine.report.calls
    assert calls["traced"] == 2 and calls["fused"] == 2 and not calls["eager"], handle.report().text()
    assert "ShapedLayer" in str(handle.engine.report.signatures[-1].live) or "layer_up" in str(
        handle.engine.report.signatures[-1].live
    )
