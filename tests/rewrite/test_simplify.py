"""What does nothing goes, what is computed twice is computed once, what depends on nothing is computed before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfast_core.rewrite.graph import drop_unused
from sfast_core.rewrite.passes.simplify import fold_constants
from sfast_core.rewrite.patterns import gelu
from tests.models import Forward
from tests.tracing import count, evaluate, rewritten, trace

Function = Callable[[Any, torch.Tensor], Any]
X = (2, 4, 6, 8)


def changed(last: str, function: Function, *shapes: tuple[int, ...]) -> tuple[int, torch.fx.Graph]:
    return rewritten(last, Forward(function, lin=nn.Linear(8, 8)), *(torch.randn(shape) for shape in shapes or [X]))


# name: (forward, how many are dropped, products and quotients left)
UNITS: dict[str, tuple[Function, int, int]] = {
    "times one": (lambda net, x: x * 1 + 2, 1, 0),
    "one times": (lambda net, x: 1.0 * x + 2, 1, 0),
    "over one": (lambda net, x: x / 1.0 + 2, 1, 0),
    "times two": (lambda net, x: x * 2, 0, 1),
    "over a half": (lambda net, x: x / 0.5, 0, 1),
    "one over": (lambda net, x: 1 / (x.abs() + 1), 0, 0),
    "a tensor of ones": (lambda net, x: x * torch.ones(8), 0, 1),
    "that makes a float of an integer": (lambda net, x: x.long() / 1, 0, 1),
    "rounded": (lambda net, x: torch.div(x, 1, rounding_mode="floor"), 0, 1),
}


@pytest.mark.parametrize("name", UNITS)
def test_factors_of_one(name: str) -> None:
    function, dropped, left = UNITS[name]
    found, graph = changed("drop_units", function)
    assert found == dropped and count(graph, torch.mul, torch.div) == left


SILUS: dict[str, tuple[Function, int]] = {
    "x * sigmoid(x)": (lambda net, x: x * torch.sigmoid(x), 1),
    "x.sigmoid() * x": (lambda net, x: x.sigmoid() * x, 1),
    "a gate used again": (lambda net, x: x.sigmoid() * x + x.sigmoid(), 1),
    "of something else": (lambda net, x: x * torch.sigmoid(x + 1), 0),
    "of a scaled x": (lambda net, x: x * torch.sigmoid(1.702 * x), 0),
    "a sum": (lambda net, x: x + torch.sigmoid(x), 0),
}


@pytest.mark.parametrize("name", SILUS)
def test_silu_is_recovered(name: str) -> None:
    function, found = SILUS[name]
    recovered, graph = changed("recover_silu", function)
    assert (recovered > 0) == bool(found) and count(graph, F.silu) == found


SHAPES: dict[str, tuple[Function, int, int]] = {
    "two reshapes": (lambda net, x: x.flatten(2).view(2, 8, 24) + 1, 1, 0),
    "there and back": (lambda net, x: x.flatten(1).unflatten(1, (4, 6, 8)) + 1, 0, 0),
    "two transposes": (lambda net, x: x.transpose(1, 2).transpose(1, 2) + 1, 0, 0),
    "two permutations": (lambda net, x: x.permute(0, 2, 3, 1).permute(0, 3, 2, 1) + 1, 0, 1),
    "with negative dimensions": (
        lambda net, x: torch.permute(torch.permute(x, (0, -1, 1, 2)), (0, 2, -1, 1)) + 1,
        0,
        0,
    ),
    "nothing": (lambda net, x: x.reshape(X) + 1, 0, 0),
    "a reshape of a transpose": (lambda net, x: x.transpose(1, 2).flatten(1) + 1, 1, 1),
    "read in between": (lambda net, x: (x.flatten(1), x.flatten(1).sigmoid().unflatten(1, (4, 48))), 2, 0),
}


@pytest.mark.parametrize("name", SHAPES)
def test_chains_of_shapes(name: str) -> None:
    function, reshapes, permutations = SHAPES[name]
    _, graph = changed("share_common", function)
    assert (count(graph, torch.reshape), count(graph, torch.permute)) == (reshapes, permutations)


COMMON: dict[str, tuple[Function, Any, int]] = {
    "the same call twice": (lambda net, x: F.silu(x) + F.silu(x), F.silu, 1),
    "the same linear twice": (lambda net, x: net.lin(x) * net.lin(x), F.linear, 1),
    "in a chain": (lambda net, x: net.lin(F.silu(x)) * net.lin(F.silu(x)), F.linear, 1),
    "an equal index": (lambda net, x: x[:, 1:3] * x[:, 1:3], "__getitem__", 1),
    "other slices": (lambda net, x: x[:, 1:3] * x[:, 0:2], "__getitem__", 2),
    "other numbers": (lambda net, x: (x * 2) + (x * 3), torch.mul, 2),
    "numbers of other types": (lambda net, x: (x.long() * 2).float() + x.long() * 2.0, torch.mul, 2),
    "zeros of other signs": (lambda net, x: torch.copysign(x * 0.0, 1 / torch.mul(x.abs(), -0.0)), torch.mul, 2),
    "other order": (lambda net, x: torch.sub(x, F.silu(x)) + torch.sub(F.silu(x), x), torch.sub, 2),
}


@pytest.mark.parametrize("name", COMMON)
def test_what_is_computed_twice(name: str) -> None:
    function, target, left = COMMON[name]
    _, graph = changed("share_common", function)
    assert count(graph, target) == left


def test_constants_are_computed_before() -> None:
    def function(net: Any, x: torch.Tensor) -> torch.Tensor:
        steps = torch.exp(-torch.arange(8, dtype=torch.float32) / 8)
        return x * steps + torch.ones(8).cumsum(0) + steps.sum()

    folded, graph = changed("fold_constants", function)
    constants = [node for node in graph.nodes if "constant" in node.meta]
    assert folded == len(constants) == 3 and not any(node.meta["constant"].requires_grad for node in constants)
    assert count(graph, torch.arange, torch.exp, torch.ones) == 0
    assert [node.op for node in graph.nodes].index("call_function") > max(
        i for i, n in enumerate(graph.nodes) if n.op == "placeholder"
    )


def test_constants_that_are_the_first_calls() -> None:
    folded, graph = changed("fold_constants", lambda net, x: torch.zeros(3, 4, 6, 8).index_add(0, torch.arange(2), x))
    assert folded == 2 and [node.name for node in graph.nodes][:3] == ["input_0", "constant", "constant_1"]


def test_what_depends_on_an_input_or_a_weight_is_no_constant() -> None:
    folded, _ = changed("fold_constants", lambda net, x: x + torch.ones_like(x) + net.lin.weight.exp().sum())
    assert folded == 0


def test_a_constant_too_large_to_keep_is_computed_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = trace(Forward(lambda net, x: x + torch.arange(8) * 1.5), torch.randn(8)).graph
    monkeypatch.setattr("sfast_core.rewrite.passes.simplify._LARGEST_CONSTANT", 8)
    assert fold_constants(graph) == 0 and count(graph, torch.arange) == 1


def test_of_what_is_too_large_to_keep_the_beginnings_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """ComfyUI's LTXV makes 82 MB of rotations of a tensor of three numbers, which would be copied from the CPU at each
    call.
    """

    def function(net: Any, x: torch.Tensor) -> torch.Tensor:
        rows, columns = torch.meshgrid(torch.arange(2), torch.arange(4) * 2, indexing="ij")
        return x + (rows * torch.tensor([2, 0, 1, 3]) + columns)

    graph = trace(Forward(function), torch.randn(2, 4)).graph
    monkeypatch.setattr("sfast_core.rewrite.passes.simplify._LARGEST_CONSTANT", 32)
    assert fold_constants(graph) == 3
    drop_unused(graph)
    assert count(graph, torch.arange, torch.tensor) == 0 and count(graph, torch.meshgrid) == 1
    x = torch.randn(2, 4)
    assert torch.equal(evaluate(graph, [x])[0], function(None, x))


def test_a_constant_that_is_the_result_stays() -> None:
    folded, graph = changed("fold_constants", lambda net, x: (x + 1, torch.arange(3) * 2))
    assert folded == 1 and len(graph.output_node().args[0]) == 2


REJOINED: dict[str, tuple[Any, bool]] = {
    "two": (lambda net, x: torch.cat([x[:, :2], x[:, 2:]], dim=1), True),
    "three": (lambda net, x: torch.cat([x[:, :2], x[:, 2:3], x[:, 3:, ...]], 1), True),
    "in another order": (lambda net, x: torch.cat([x[:, 2:], x[:, :2]], dim=1), False),
    "less than all": (lambda net, x: torch.cat([x[:, :2], x[:, 2:4]], dim=1), False),
    "with a gap": (lambda net, x: torch.cat([x[:, :2], x[:, 3:]], dim=1), False),
    "every other": (lambda net, x: torch.cat([x[:, :2], x[:, 2::2]], dim=1), False),
    "along another dimension": (lambda net, x: torch.cat([x[:, :2], x[:, 2:4]], dim=0), False),
    "of two tensors": (lambda net, x: torch.cat([x[:, :2], (x * 2)[:, 2:]], dim=1), False),
    "of parts of parts": (lambda net, x: torch.cat([x[:1, :2], x[:1, 2:]], dim=1), False),
}


@pytest.mark.parametrize("name", REJOINED)
def test_slices_that_are_joined_again(name: str) -> None:
    way, expected = REJOINED[name]
    found, graph = rewritten("rejoin_slices", Forward(lambda net, x: way(net, x) + 1), torch.randn(2, 5, 3))
    assert found == expected and count(graph, torch.cat) == (not expected)


_ROOT = (2 / torch.pi) ** 0.5
GELUS: dict[str, tuple[Function, int]] = {
    "half first": (lambda net, x: 0.5 * x * (1.0 + torch.tanh(_ROOT * (x + 0.044715 * torch.pow(x, 3.0)))), 1),
    "half last": (lambda net, x: (x * (torch.tanh((x + x**3 * 0.044715) * _ROOT) + 1)) * 0.5, 1),
    "squares": (lambda net, x: 0.5 * x * (1.0 + torch.tanh(_ROOT * (x + 0.044715 * torch.pow(x, 2.0)))), 0),
    "another root": (lambda net, x: 0.5 * x * (1.0 + torch.tanh(0.8 * (x + 0.044715 * torch.pow(x, 3.0)))), 0),
    "of something else": (
        lambda net, x: 0.5 * (x + 1) * (1.0 + torch.tanh(_ROOT * (x + 0.044715 * torch.pow(x, 3.0)))),
        0,
    ),
    "tanh read elsewhere": (
        lambda net, x: (lambda t: 0.5 * x * (1.0 + t) + t)(torch.tanh(_ROOT * (x + 0.044715 * torch.pow(x, 3.0)))),
        0,
    ),
}


@pytest.mark.parametrize("name", GELUS)
def test_gelu_by_tanh(name: str) -> None:
    function, expected = GELUS[name]
    found, graph = changed("recover_gelu", function)
    assert (found, count(graph, gelu)) == (expected, expected)
