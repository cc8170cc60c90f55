"""Linear layers in 8 bits: what is made of them, what is joined, and which a probe takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx import Graph, Node

from sfast_core.machine.choices import Choices
from sfast_core.ops.quantise import quantise
from sfast_core.ops.scaled_linear import scaled_linear
from sfast_core.quality.levels import Allowed
from sfast_core.quality.sensitivity import Sensitivity
from sfast_core.rewrite import rewrite
from sfast_core.runtime.store import WeightStore
from sfast_core.target import Target
from tests.models import Attention, Forward
from tests.tracing import CPU, count, evaluate, trace


def in_eight_bits(graph: Graph, layers: Sequence[Node]) -> dict[Node, bool]:
    """All of them, every other one rotated."""
    return {layer: bool(index % 2) for index, layer in enumerate(layers)}


def plain(graph: Graph, layers: Sequence[Node]) -> dict[Node, bool]:
    return dict.fromkeys(layers, False)


def apart(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    return ((mine.double() - theirs.double()).norm() / theirs.double().norm()).item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_products_are_near_what_they_were(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    net = Forward(
        lambda net, x: (net.a(x), net.b(x), net.c(x[0]), net.d(x)),
        a=nn.Linear(64, 24),
        b=nn.Linear(64, 40),
        c=nn.Linear(64, 8, bias=False),
    )
    net.d = nn.Linear(64, 3)
    net, x = net.to(dtype), torch.randn(2, 9, 64, dtype=dtype)
    with torch.no_grad():
        truth = net.float()(x.float())
    net.to(dtype)
    graph = trace(net, x).graph
    counts = rewrite(graph, WeightStore().may_pack, in_eight_bits=in_eight_bits).counts
    assert counts["eight_bits"] == 4 and count(graph, quantise) == 3  # of x plain and rotated, and of a part of it
    for mine, theirs in zip(evaluate(graph, [x]), truth, strict=True):
        assert mine.dtype == dtype and mine.shape == theirs.shape and 1e-3 < apart(mine, theirs) < 1.3e-2


@pytest.mark.parametrize("bias", [True, False])
def test_layers_that_read_one_input_are_joined(bias: bool) -> None:
    torch.manual_seed(0)
    net = Forward(
        lambda net, x: net.a(x) * 2 + net.b(x) + net.c(x), **{name: nn.Linear(16, 8, bias=bias) for name in "abc"}
    )
    x, results = torch.randn(2, 5, 16), []
    for disabled in ((), ("pack_eight_bits",)):
        graph = trace(net, x).graph
        counts = rewrite(graph, WeightStore().may_pack, disabled, in_eight_bits=plain).counts
        assert counts.get("pack_eight_bits") == (None if disabled else 3) and count(graph, scaled_linear) == (
            3 if disabled else 1
        )
        results += evaluate(graph, [x])
    assert torch.equal(*results)


def test_attention_reads_parts_of_one_product() -> None:
    torch.manual_seed(0)
    net, x = Attention(32).eval(), torch.randn(2, 9, 32)
    graph = trace(net, x).graph
    counts = rewrite(graph, WeightStore().may_pack, in_eight_bits=plain).counts
    with torch.no_grad():
        assert (
            counts["pack_eight_bits"] == 3
            and counts["fuse_attention"] == 1
            and apart(evaluate(graph, [x])[0], net(x)) < 2e-2
        )


def test_what_is_no_matrix_of_the_modules_stays() -> None:
    torch.manual_seed(0)
    tied = nn.Linear(16, 16)
    net = Forward(
        lambda net, x: net.a(x) + net.b(x) + torch.nn.functional.linear(x, net.c.weight * 2),
        a=nn.Linear(16, 16),
        b=nn.Linear(16, 16),
        c=tied,
    )
    net.b.weight = net.a.weight
    graph = trace(net, torch.randn(2, 5, 16)).graph
    assert rewrite(graph, None, in_eight_bits=plain).counts["eight_bits"] == 0 and count(graph, scaled_linear) == 0


# -- which ---------------------------------------------------------------------------------------------------------


def chosen(
    net: nn.Module, x: torch.Tensor, budget: float, layers: tuple[str, ...] = ()
) -> tuple[dict[str, bool], list[str]]:
    """The layers that a probe takes, and what it says."""
    found: dict[str, bool] = {}
    graph, said = trace(net, x).graph, list[str]()
    allowed = Allowed("near-exact", ("products",), layers, budget)
    choose = Sensitivity().chooser(
        allowed, [x], WeightStore(), Choices(None), Target(CPU), lambda *_: False, said.append
    )

    def asked(graph: Graph, candidates: Sequence[Node]) -> dict[Node, bool]:
        taken = choose(graph, candidates)
        found.update({str(node.args[1].meta["source"].refs[0]): rotated for node, rotated in taken.items()})  # type: ignore[union-attr]
        return taken

    with torch.no_grad():
        rewrite(graph, None, in_eight_bits=asked)
    return found, said


def net_of(*widths: int) -> Any:
    torch.manual_seed(0)
    names = "abcdef"[: len(widths) - 1]
    layers = {
        name: nn.Linear(one, other, bias=False) for name, one, other in zip(names, widths, widths[1:], strict=False)
    }

    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        for name in names:
            x = getattr(net, name)(x)
        return x

    return Forward(forward, **layers).requires_grad_(False)


def test_all_take_part_where_the_result_bears_it() -> None:
    found, said = chosen(net_of(64, 64, 64), torch.randn(3, 7, 64), 3e-2)
    assert found == {"a.weight": False, "b.weight": False} and said == [
        "2 of 2 linear layers in 8 bits, so that the result is within 3.0e-02 of the exact one"
    ]


def test_outliers_are_rotated_away() -> None:
    """One channel of the input is 100 times as large as the others, which then get two or three of the 255 numbers."""
    net, x = net_of(64, 64), torch.randn(3, 7, 64)
    x[..., 5] *= 100
    net.a.weight[:, 5] *= 0.001
    assert chosen(net, x, 0.1) == (
        {"a.weight": True},
        ["1 of 1 linear layers in 8 bits, 1 of them rotated, so that the result is within 1.0e-01 of the exact one"],
    )


def test_a_layer_that_costs_too_much_is_left_out() -> None:
    """The second one takes a difference of what is nearly equal."""
    net, x = net_of(64, 64, 64), torch.randn(3, 7, 64)
    net.b.weight[:, 1::2] = -net.b.weight[:, ::2]
    net.a.weight[1::2] = net.a.weight[::2] * (1 + 1e-3)
    found, said = chosen(net, x, 2e-2)
    assert found == {"a.weight": False} and said[0].startswith("1 of 2 linear layers in 8 bits")
    assert chosen(net, x, 2e-2) == (found, said)


def test_layers_by_name() -> None:
    x = torch.randn(3, 7, 64)
    assert set(chosen(net_of(64, 64, 64, 64), x, 1.0, ("[ab]",))[0]) == {"a.weight", "b.weight"}
    assert set(chosen(net_of(64, 64, 64, 64), x, 1.0, ("!b",))[0]) == {"a.weight", "c.weight"}
