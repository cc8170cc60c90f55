"""Weights in a trace: inputs by their address below the module."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfast_core.capture import Recorder
from sfast_core.weights import Weight, WeightTable
from tests.models import Forward
from tests.tracing import check_recording, evaluate, trace


def nowhere(tensor: torch.Tensor) -> None:
    """Where a tensor is kept that is no input and no weight: no place is known."""


def test_weights_are_inputs_by_address() -> None:
    net = Forward(lambda net, x: net.lin(x) * net.scale + net.table, lin=nn.Linear(8, 8))
    net.register_buffer("table", torch.randn(4, 8))
    net.scale = torch.randn(8)  # a plain attribute
    found = trace(net, torch.randn(4, 8))
    sources = [node.meta["source"] for node in found.graph.nodes if "source" in node.meta]
    assert [str(source) for source in sources] == ["lin.weight", "lin.bias", "scale", "table"]
    assert all(isinstance(source, Weight) and source.plain for source in sources)
    net.lin.weight = nn.Parameter(torch.randn(8, 8))  # replaced, as a LoRA does
    net.scale = torch.randn(8)
    with torch.no_grad():
        net.table.mul_(3)  # written in place
    x = torch.randn(4, 8)
    torch.testing.assert_close(evaluate(found.graph, [x])[0], net(x).detach(), rtol=0, atol=0)


def test_a_tied_weight_is_one_input_at_the_first_address() -> None:
    net = Forward(lambda net, x: net.b(net.a(x)), a=nn.Linear(8, 8, bias=False), b=nn.Linear(8, 8, bias=False))
    net.b.weight = net.a.weight
    found = trace(net, torch.randn(4, 8))
    (source,) = [node.meta["source"] for node in found.graph.nodes if "source" in node.meta]
    assert str(source) == "a.weight" and source.refs[0].tied
    check_recording(net, torch.randn(4, 8))


def test_a_weight_bound_by_a_host_is_an_input_and_its_cast_is_recorded() -> None:
    net = Forward(lambda net, x: x, lin=nn.Linear(8, 8).half())
    x = torch.randn(4, 8)
    recorder = Recorder([x], WeightTable(net))
    with torch.no_grad(), recorder:
        with recorder.paused():
            weight = net.lin.weight.float() + 0
        recorder.bind_weight(weight, net.lin, "weight")
        result = F.linear(x, weight)
    graph = recorder.finish([result], nowhere)
    assert graph is not None, recorder.failure
    assert [str(n.meta["source"]) for n in graph.nodes if "source" in n.meta] == ["lin.weight"]
    torch.testing.assert_close(evaluate(graph, [x])[0], result)
    recorder = Recorder([x], WeightTable(net))
    recorder.bind_weight(torch.zeros(3), nn.Linear(8, 8), "weight")
    assert (
        recorder.failure is not None
        and "is not understood" in recorder.failure
        and recorder.finish([x], nowhere) is None
    )


def test_a_tied_weight_has_one_name_however_it_is_asked_for() -> None:
    net = Forward(
        lambda net, x: net.b(net.a(x)), a=nn.Linear(8, 8, bias=False), b=nn.Linear(8, 8, bias=False), c=nn.Linear(8, 8)
    )
    net.b.weight = net.a.weight
    table = WeightTable(net)
    refs = [table.find(net.a.weight), table.ref(net.a, "weight"), table.ref(net.b, "weight")]
    assert [str(ref) for ref in refs] == ["a.weight"] * 3 and all(ref is not None and ref.tied for ref in refs)
    assert (
        table.ref(nn.Linear(8, 8), "weight") is None
        and str(table.ref(net.c, "bias")) == "c.bias"
        and not table.ref(net.c, "bias").tied
    )  # type: ignore[union-attr]
    net.b.weight = nn.Parameter(net.a.weight.detach().clone())
    for ref in refs:
        with pytest.raises(ReferenceError, match=r"the weights a.weight and b.weight are one tensor no more"):
            ref.tensor()  # type: ignore[union-attr]
