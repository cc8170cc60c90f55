"""A model with weights of a class of its own is recorded by their parts, by what that class does with them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core import CompileConfig, CompiledModule, compile
from sfast_core.capture import Recorder
from sfast_core.weights import Plain, WeightTable
from tests.models import Forward
from tests.quantised import Quantised, quantise
from tests.tracing import evaluate, same, try_record


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down, self.norm = nn.Linear(8, 16), nn.Linear(16, 8, bias=False), nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def compiled(net: nn.Module) -> CompiledModule:
    return compile(net, CompileConfig(allow_cpu=True))


def check(handle: CompiledModule, mode: Callable[[], Any] = torch.no_grad) -> None:
    x = torch.randn(2, 3, 8)
    with mode():
        expected = type(handle.module).forward(handle.module, x)
        torch.testing.assert_close(handle(x), expected)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_its_parts_are_weights(mode: Callable[[], Any]) -> None:
    net = quantise(Net())
    with mode():
        _, found = try_record(net, torch.randn(2, 3, 8))
    names = {str(node.meta["source"]) for node in found.graph.nodes if "source" in node.meta and node.users}  # type: ignore[union-attr]
    assert names == {
        "up.weight._data",
        "up.weight.scale",
        "up.bias",
        "down.weight._data",
        "down.weight.scale",
        "norm.weight",
        "norm.bias",
    }
    x = torch.randn(2, 3, 8)
    with torch.no_grad():
        same(evaluate(found.graph, [x])[0], net(x))  # type: ignore[union-attr]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_it_runs_fused(mode: Callable[[], Any]) -> None:
    handle = compiled(quantise(Net()))
    check(handle, mode), check(handle, mode)
    assert handle.engine.report.calls == {"traced": 1, "fused": 1}, handle.report().text()


def test_new_values_need_no_new_trace() -> None:
    """As a LoRA brings them: dequantised, changed, quantised again; written in place,
    or put there as another weight.
    """
    handle = compiled(quantise(Net()))
    check(handle)
    for seed in range(3):
        torch.manual_seed(seed)
        new = Quantised.of(torch.randn(16, 8))
        if seed == 1:
            with torch.no_grad():
                handle.module.up.weight.copy_(new)
        else:
            handle.module.up.weight = nn.Parameter(new, requires_grad=False)
        check(handle)
    assert handle.engine.report.calls == {"traced": 1, "fused": 3}, handle.report().text()


def test_a_tensor_of_parts_that_a_call_makes_is_none_of_its_state() -> None:
    """As an input that is quantised in front of a product: its class sets its parts on it, and reads them."""

    class Marked(Quantised):
        def __init__(self, *_: Any) -> None:
            self.rows = getattr(self, "rows", len(self._data))

    net = Forward(lambda net, x: x + Marked.of(x).dequantised() * 2.0)
    handle = compiled(net)
    x = torch.randn(4, 8)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(handle(x), type(net).forward(net, x))
    assert handle.engine.report.calls == {"traced": 1, "fused": 2}, handle.report().text()


@pytest.mark.parametrize(
    "new", [lambda: torch.randn(16, 8), lambda: Quantised.of(torch.randn(16, 8), halved=True)], ids=["plain", "halved"]
)
def test_a_weight_that_is_made_in_another_way_is_traced_anew(new: Callable[[], torch.Tensor]) -> None:
    handle = compiled(quantise(Net()))
    check(handle)
    handle.module.up.weight = nn.Parameter(new(), requires_grad=False)
    check(handle), check(handle)
    assert handle.engine.report.calls["traced"] == 2 and handle.engine.report.calls["fused"] == 1, (
        handle.report().text()
    )


def test_a_weight_that_its_host_keeps_elsewhere() -> None:
    """As dynamic VRAM does: the layer computes with a tensor around parts that lie in memory of the host's."""

    class Elsewhere(Plain):
        def laid(self, refs: Any) -> torch.Tensor:
            return net.up.kept if refs[0].part is None else refs[0].part.at(net.up.kept, refs[0])  # type: ignore[no-any-return,union-attr]

    net = quantise(Net())
    net.up.__dict__["kept"] = Quantised.of(torch.randn(16, 8))
    recorder = Recorder([x := torch.randn(2, 8)], WeightTable(net))
    with torch.no_grad(), recorder:
        around = Quantised(net.up.kept._data, net.up.kept._params)  # type: ignore[union-attr,arg-type]
        recorder.bind_weight(around, net.up, "weight", Elsewhere())  # type: ignore[arg-type]
        result = torch.nn.functional.linear(x, around)
    graph = recorder.finish([result], lambda _: None)
    assert graph is not None, recorder.failure
    read = [str(node.meta["source"]) for node in graph.nodes if "source" in node.meta and node.users]
    assert read == ["up.weight._data", "up.weight.scale"]


class Sparing(Quantised):
    """One that spares memory: it adds to what it has just made, asks operators for whichever form fits, and fills what
    is empty.
    """

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.nn.functional.linear:
            return super().__torch_function__(func, types, args, kwargs or {})
        with torch._C.DisableTorchFunctionSubclass():
            return cls.product(*args)

    @staticmethod
    def product(x: torch.Tensor, weight: Any, bias: torch.Tensor | None) -> torch.Tensor:
        y = torch.ops.aten.mm(x.reshape(-1, x.shape[-1]), weight.dequantised().t())
        if bias is not None:
            y += bias
        return torch.ops.aten.clamp_(y.reshape(*x.shape[:-1], -1), -3.0, 3.0)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_operators_in_place_and_of_several_forms(mode: Callable[[], Any]) -> None:
    net = Net()
    for layer in (net.up, net.down):
        layer.weight = nn.Parameter(
            Sparing(*(Quantised.of(layer.weight.detach()).__dict__[name] for name in ("_data", "_params"))),
            requires_grad=False,
        )  # type: ignore[arg-type]
    handle = compiled(net)
    check(handle, mode), check(handle, mode)
    assert handle.engine.report.calls == {"traced": 1, "fused": 1}, handle.report().text()
    with mode():
        _, found = try_record(net, torch.randn(2, 3, 8))
    assert not [node for node in found.graph.nodes if str(node.target).startswith("aten.")]  # type: ignore[union-attr]


def test_an_operator_whose_result_depends_on_values_is_no_part_of_a_graph() -> None:
    class Choosing(Sparing):
        @staticmethod
        def product(x: torch.Tensor, weight: Any, bias: torch.Tensor | None) -> torch.Tensor:
            columns = torch.ops.aten.nonzero((x > 1).flatten(0, -2).any(0)).flatten()
            return torch.nn.functional.linear(x[..., columns], weight.dequantised()[:, columns], bias)

    net = Net()
    net.up.weight = nn.Parameter(
        Choosing(*(Quantised.of(net.up.weight.detach()).__dict__[name] for name in ("_data", "_params"))),
        requires_grad=False,
    )  # type: ignore[arg-type]
    handle = compiled(net)
    for _ in range(4):
        check(handle)
    report = handle.report().text()
    assert "shape depends on another's values" in report and handle.engine.report.calls["fused"], report


def test_a_module_with_such_weights_can_be_moved() -> None:
    """``module.to`` exchanges them with others (``swap_tensors``), which torch refuses where somebody has weak
    references to them.
    """
    handle = compiled(quantise(Net()))
    check(handle), check(handle)
    weight = handle.module.up.weight
    assert not weakref.getweakrefs(weight)
    torch.utils.swap_tensors(weight, nn.Parameter(Quantised.of(torch.randn(16, 8)), requires_grad=False))  # type: ignore[arg-type]
    check(handle), check(handle)
    torch.utils.swap_tensors(weight, nn.Parameter(Quantised.of(torch.randn(16, 8), halved=True), requires_grad=False))  # type: ignore[arg-type]
    check(handle), check(handle)
    assert handle.engine.report.calls == {"traced": 2, "fused": 4}, handle.report().text()


def test_a_whole_that_is_another_with_the_same_parts() -> None:
    handle = compiled(quantise(Net()))
    check(handle), check(handle)
    up: Any = handle.module.up
    for halved in (True, True, False, True):
        params = replace(up.weight._params, halved=halved)
        up.weight = nn.Parameter(Quantised(up.weight._data, params), requires_grad=False)
        check(handle)
    assert not handle.engine.report.calls["eager"], handle.report().text()
