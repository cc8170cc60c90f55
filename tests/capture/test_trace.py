"""One recorded call: its graph's inputs, its result's shape, and what a host's leaf scope sees."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core.capture import Recorder, Signature, Trace, Untraceable, record, recording
from sfast_core.capture.call_tensors import CallTensors
from sfast_core.capture.guards import ReadSet
from sfast_core.capture.result import split_result
from tests.models import Forward
from tests.tracing import CPU, trace, try_record


def test_placeholders_are_the_tensors_of_the_signature_then_the_weights() -> None:
    net = Forward(lambda net, x, other=None, *, scale: net.lin(other[0]) * scale + x, lin=nn.Linear(4, 4))
    x, y = torch.randn(2, 4), torch.randn(2, 4)
    graph = trace(net, x, other=[y], scale=2.0).graph
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    assert [node.name for node in placeholders] == ["input_0", "input_1", "weight_lin_weight", "weight_lin_bias"]
    assert list(graph.nodes)[:4] == placeholders


def test_an_unused_input_stays_a_placeholder() -> None:
    graph = trace(Forward(lambda net, x, y: y + 1), torch.randn(2), torch.randn(3)).graph
    assert [node.name for node in graph.nodes if node.op == "placeholder"] == ["input_0", "input_1"]


def test_every_computed_node_tells_what_its_value_looked_like() -> None:
    net = Forward(lambda net, x: net.lin(x).transpose(0, 1).half(), lin=nn.Linear(4, 3))
    graph = trace(net, torch.randn(2, 4)).graph
    values = [
        (tuple(n.meta["val"].shape), n.meta["val"].stride(), n.meta["val"].dtype)
        for n in graph.nodes
        if n.op.startswith("call")
    ]
    assert values == [((2, 3), (3, 1), torch.float32), ((3, 2), (1, 3), torch.float32), ((3, 2), (1, 3), torch.float16)]
    assert all(
        n.meta["val"].device.type == "meta" and n.meta["device"] == CPU for n in graph.nodes if n.op.startswith("call")
    )


def test_a_result_is_put_together_again() -> None:
    x, y = torch.ones(1), torch.zeros(2)
    tensors = CallTensors()
    spec = split_result({"a": [x, None, 2], "b": (y, "word", x), "size": y.shape}, tensors)
    assert len(tensors.computed) == 2 and tensors.computed[0] is x and tensors.computed[1] is y
    a, b = torch.ones(3), torch.ones(4)
    built = spec.build([a, b], [])
    assert (
        built == {"a": [a, None, 2], "b": (b, "word", a), "size": torch.Size([2])} and type(built["size"]) is torch.Size
    )


def test_a_registered_class_of_results_is_kept() -> None:
    from torch.utils import _pytree

    @dataclass
    class Output:
        sample: torch.Tensor

    _pytree.register_pytree_node(Output, lambda out: ([out.sample], None), lambda values, _: Output(*values))
    found = trace(Forward(lambda net, x: Output(x * 2)), torch.ones(3))
    built = found.outputs.build([torch.zeros(3)], [torch.ones(3)])
    assert isinstance(built, Output) and not built.sample.any()


def test_a_call_inside_a_recorded_call_is_told() -> None:
    seen = []
    net = Forward(lambda net, x: seen.append(recording()) or x + 1)
    trace(net, torch.ones(2))
    net(torch.ones(2))
    assert seen == [True, False] and not recording()


def test_the_leaf_scope_is_around_the_call() -> None:
    events: list[Any] = []

    @contextmanager
    def scope(recorder: Recorder) -> Iterator[None]:
        events.append("enter")
        yield
        events.append(recorder.failure)
        recorder.refuse("a leaf is not understood", passing=True)

    x, net = torch.ones(2), nn.Identity()
    reads = ReadSet(net, net.forward)
    result, found, _ = record(
        lambda: events.append("call") or x + 1, Signature((x,), {}).tensors, net, CPU, reads, scope
    )
    assert events == ["enter", "call", None] and torch.equal(result, x + 1)
    assert isinstance(found, Untraceable) and (found.reason, found.passing) == ("a leaf is not understood", True)


@pytest.mark.parametrize("grad", [False, True])
def test_inference_mode_and_grad_mode_stay_as_they_are(grad: bool) -> None:
    net = Forward(lambda net, x: net.lin(x), lin=nn.Linear(4, 4).requires_grad_(False))
    with torch.set_grad_enabled(grad), torch.inference_mode(not grad):
        result, found = try_record(net, torch.randn(2, 4))
        assert isinstance(found, Trace) and result.is_inference() is not grad and torch.is_grad_enabled() is grad


@pytest.mark.parametrize(
    "error",
    [KeyError("k"), IndexError("i"), LookupError("l"), StopIteration("s"), ValueError("v"), KeyboardInterrupt()],
)
def test_what_a_forward_raises_arrives(error: BaseException) -> None:
    def fails(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        raise error

    with pytest.raises(type(error)) as raised:
        try_record(Forward(fails), torch.ones(2))
    assert raised.value is error
