"""Tensors that a forward makes on the CPU. The meta device stands for the GPU: it, too, is another one than theirs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx import Graph

from sfast_core.capture.functional import setitem
from sfast_core.lowering import _why_not_capturable
from sfast_core.rewrite.pipeline import passes
from tests.models import Forward
from tests.tracing import rewritten, trace

Function = Callable[[Any, torch.Tensor], Any]
GPU = torch.device("meta")
X = (2, 4, 8)


def placed(function: Function, dtype: torch.dtype = torch.float32, shape: tuple[int, ...] = X) -> Graph:
    """The graph of ``function`` of a tensor on the other device, behind the pass that places its constants."""
    graph = trace(Forward(function), torch.empty(shape, dtype=dtype, device=GPU)).graph
    for name, run in passes(None).items():
        run(graph)
        if name == "place_constants":
            break
    graph.lint()
    return graph


def constants(graph: Graph) -> list[torch.Tensor]:
    return [node.meta["constant"] for node in graph.nodes if "constant" in node.meta]


def numbers(graph: Graph) -> list[Any]:
    return [
        arg
        for node in graph.nodes
        if node.op.startswith("call")
        for arg in node.args
        if type(arg) in (int, float, bool)
    ]


def sinusoids(net: Any, t: torch.Tensor) -> torch.Tensor:
    """As ComfyUI's Wan makes them."""
    angles = torch.outer(t, torch.pow(10000, -torch.arange(4).to(t).div(4)))
    return torch.cat([angles.cos(), angles.sin()], dim=1)


def assigned(x: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
    x[0, 1, 2] = number
    return x


# name: (forward, how many constants there are)
MOVED: dict[str, tuple[Function, int]] = {
    "to the device and dtype": (lambda net, x: x + torch.arange(8).to(x.device, x.dtype), 1),
    "to another tensor": (lambda net, x: x + torch.arange(8).to(x), 1),
    "to another tensor by name": (lambda net, x: x + torch.arange(8).to(tensor=x), 1),
    "as the type of another": (lambda net, x: x + (torch.arange(8) * 2).type_as(x), 1),
    "new_tensor": (lambda net, x: x + x.new_tensor([1.0] * 8), 1),
    "new_tensor of integers": (lambda net, x: x + x.new_tensor([[1], [2], [3], [4]]), 1),
    "new_tensor in a dtype": (lambda net, x: x.long() + x.new_tensor([1] * 8, dtype=torch.int64), 1),
    "tensor on the device": (lambda net, x: x + torch.tensor([1.0] * 8, device=x.device), 1),
    "an index": (lambda net, x: x[:, torch.tensor([0, 2])], 1),
    "an index that is computed": (lambda net, x: x[..., torch.arange(8).flip(0)], 1),
    "a list as an index": (lambda net, x: x[:, [0, 2]], 1),
    "a list as the only index": (lambda net, x: x[[1, 0]], 1),
    "assigned": (
        lambda net, x: torch.zeros(8, device=x.device).index_fill(0, torch.arange(8).to(x.device), 1.0) + x,
        1,
    ),
    "copied": (lambda net, x: x + torch.empty_like(x).copy_(torch.arange(8.0)), 1),
    "read twice": (lambda net, x: x[:, torch.arange(2)] + x[:, torch.arange(2)] * 2, 1),
    "a choice": (lambda net, x: torch.where(x > 0, x, torch.tensor(0.5)), 1),
}


@pytest.mark.parametrize("name", MOVED)
def test_a_tensor_made_on_the_cpu_is_a_constant_on_the_device(name: str) -> None:
    function, expected = MOVED[name]
    graph = placed(function)
    found = constants(graph)
    assert len(found) == expected and all(constant.device == GPU for constant in found)
    assert _why_not_capturable(graph, GPU) is None


def test_wans_frequencies() -> None:
    graph = placed(sinusoids, shape=(2,))
    assert [tuple(constant.shape) for constant in constants(graph)] == [(4,)] and _why_not_capturable(
        graph, GPU
    ) is None


# name: (forward, dtype of x, the number that the tensor becomes; None: it is moved)
SCALARS: dict[str, tuple[Function, torch.dtype, float | None]] = {
    "times": (lambda net, x: x * torch.tensor(0.1), torch.float16, torch.tensor(0.1).item()),
    "the other way round": (lambda net, x: torch.tensor(0.1) * x, torch.float16, torch.tensor(0.1).item()),
    "plus, in double precision": (lambda net, x: x + torch.tensor(0.1, dtype=torch.float64), torch.float32, 0.1),
    "over": (lambda net, x: x / torch.tensor(3), torch.bfloat16, 3),
    "minus": (lambda net, x: x - torch.tensor(0.5), torch.float16, 0.5),
    "to the power of": (lambda net, x: x ** torch.tensor(2), torch.float32, 2),
    "compared": (lambda net, x: x > torch.tensor(0.25), torch.float16, 0.25),
    "from a computed one": (lambda net, x: x * torch.arange(4).sum(), torch.float16, 6),
    "filled in": (lambda net, x: x * torch.full_like(x, torch.tensor(0.5)), torch.float16, 0.5),
    "assigned": (lambda net, x: assigned(x * x, torch.tensor(0.5)), torch.float16, 0.5),
    "minus x": (lambda net, x: torch.tensor(0.5) - x, torch.float16, None),
    "of an integer x": (lambda net, x: x * torch.tensor(0.1, dtype=torch.float64), torch.int64, None),
    "of one element": (lambda net, x: x * torch.tensor([0.1]).to(x.device), torch.float16, None),
}


@pytest.mark.parametrize("name", SCALARS)
def test_a_scalar_on_the_cpu_is_a_number(name: str) -> None:
    """A kernel gets it by value, and in more digits than a half has. Where it would be promoted otherwise, it is
    moved.
    """
    function, dtype, number = SCALARS[name]
    graph = placed(function, dtype)
    if number is None:
        assert [constant.device for constant in constants(graph)] == [GPU]
    else:
        assert not any(constant.device.type == "cpu" for constant in constants(graph)) and number in numbers(graph)
    assert _why_not_capturable(graph, GPU) is None


def test_a_scalar_of_two_scalars_is_no_number() -> None:
    """Two tensors without dimensions are promoted by their dtypes."""
    graph = placed(lambda net, x: x * torch.tensor(0.1), torch.float16, ())
    assert len(constants(graph)) == 1 and numbers(graph) == []


@pytest.mark.parametrize(
    "index", [(0, 1), (0, ...), (slice(0, 2), None), 1, (torch.tensor([0, 2]),), (torch.arange(12).reshape(3, 4) > 3,)]
)
@pytest.mark.parametrize("number", [2, 0.5, True])
def test_a_number_that_is_assigned(index: Any, number: float) -> None:
    """It is filled in where the index makes a view, without a tensor on the CPU."""
    x = torch.randn(3, 4, dtype=torch.float16)
    expected = x.clone()
    expected[index] = number
    assert torch.equal(setitem(x, index, number), expected) and not torch.equal(x, expected)


def test_on_one_device_nothing_is_out_of_its_place() -> None:
    def function(net: Any, x: torch.Tensor) -> torch.Tensor:
        return (x * torch.tensor(0.1) + torch.tensor(3)) / torch.tensor(7.0)

    found, _ = rewritten("place_constants", Forward(function), torch.randn(X))
    assert found == 0


@pytest.mark.parametrize("index", [[[0, 1], [1, 0]], [True, False]], ids=["lists in a list", "truths"])
def test_what_still_comes_from_python_is_said(index: Any) -> None:
    graph = trace(Forward(lambda net, x: x[index, 0] * 2), torch.randn(X)).graph
    for run in passes(None).values():
        run(graph)
    assert _why_not_capturable(graph, torch.device("cpu")) == "__getitem__ copies values from the CPU at each call"


def test_what_is_computed_on_the_cpu_is_said() -> None:
    graph = trace(Forward(lambda net, x: x + 1), torch.empty(X, device=GPU)).graph
    assert "input_0 is on meta" in (_why_not_capturable(graph, torch.device("cpu")) or ""), (
        "a tensor of the call itself"
    )


def test_a_constant_that_is_only_returned_stays_where_it_is() -> None:
    graph = placed(lambda net, x: (x + 1, torch.arange(3)))
    assert [constant.device.type for constant in constants(graph)] == ["cpu"] and _why_not_capturable(
        graph, GPU
    ) is None


def test_a_constant_read_on_both_sides_is_on_both() -> None:
    graph = placed(lambda net, x: (x[:, torch.arange(2)], torch.arange(2)))
    assert sorted(constant.device.type for constant in constants(graph)) == ["cpu", "meta"]
