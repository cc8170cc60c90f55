"""Linear layers of one input as one matrix product."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfast_core.ops.attention import attention
from sfast_core.rewrite.passes.pack_linears import pack_context, pack_embedding, pack_qkv
from sfast_core.rewrite.pipeline import rewrite
from tests.models import Forward, TransformerBlock, UNet
from tests.tracing import count, evaluate, rewritten, trace

Function = Callable[[Any, torch.Tensor], Any]
TOKENS, EMBEDDING = (2, 5, 8), (2, 8)


def build(function: Function) -> Forward:
    torch.manual_seed(0)
    return Forward(
        function,
        a=nn.Linear(8, 4),
        b=nn.Linear(8, 6),
        c=nn.Linear(8, 10, bias=False),
        d=nn.Linear(8, 2, bias=False),
        e=nn.Linear(8, 4, dtype=torch.float64),
    )


def sums(*names: str) -> Function:
    """The sum over each of the layers' results, of a value that is computed."""
    return lambda net, x: sum(getattr(net, name)(x.sigmoid()).sum(dim=-1) for name in names)


def shared_weight(net: Any, x: torch.Tensor) -> torch.Tensor:
    y = x.sigmoid()
    return net.a(y).sum() + F.linear(y, net.a.weight * 1.5, net.b.bias[:4]).sum() + net.b(y).sum()


# name: (forward of tokens, calls of linear before and after)
TOKEN_LAYERS: dict[str, tuple[Function, int, int]] = {
    "two": (sums("a", "b"), 2, 1),
    "two without a bias": (sums("c", "d"), 2, 1),
    "a bias on some": (sums("a", "b", "c", "d"), 4, 2),
    "a bias on one": (sums("a", "c"), 2, 2),
    "one": (sums("a"), 1, 1),
    "of two inputs": (lambda net, x: net.a(x.sigmoid()).sum() + net.b(x.tanh()).sum(), 2, 2),
    "a weight read twice": (shared_weight, 3, 3),
    "a layer used twice": (lambda net, x: net.a(x.sigmoid()) + net.a(net.a(x.sigmoid()).repeat(1, 1, 2)), 3, 2),
    "with an activation": (lambda net, x: F.gelu(net.a(x.sigmoid())).sum() + net.b(x.sigmoid()).sum(), 2, 1),
    "of the call's own tensor": (lambda net, x: net.a(x).sum() + net.b(x).sum(), 2, 2),
    "of a vector per sample": (lambda net, x: net.a(x.sigmoid()[:, 0]).sum() + net.b(x.sigmoid()[:, 0]).sum(), 2, 2),
}


@pytest.mark.parametrize("name", TOKEN_LAYERS)
def test_layers_of_one_token_sequence(name: str) -> None:
    function, before, after = TOKEN_LAYERS[name]
    net = build(function)
    assert count(trace(net, torch.randn(TOKENS)).graph, F.linear) == before
    if name in ("of the call's own tensor", "of a vector per sample"):  # the other two passes' business
        graph = trace(net, torch.randn(TOKENS)).graph
        rewrite(graph, lambda weight: True, ("pack_context", "pack_embedding"))
    else:
        _, graph = rewritten("pack_qkv", net, torch.randn(TOKENS))
    assert count(graph, F.linear) == after


def test_the_packed_weight_is_the_layers_one_behind_the_other() -> None:
    found, graph = rewritten("pack_qkv", build(sums("a", "b")), torch.randn(TOKENS))
    sources = [str(node.meta["source"]) for node in graph.nodes if "source" in node.meta]
    assert found == 2 and sources == ["a.weight+b.weight packed", "a.bias+b.bias packed"]
    assert [tuple(node.meta["val"].shape) for node in graph.nodes if "source" in node.meta] == [(10, 8), (10,)]
    assert [node.args[2:] for node in graph.nodes if node.target is torch.narrow] == [(0, 4), (4, 6)]


def test_every_projection_of_the_prompt_in_one_product() -> None:
    net = Forward(
        lambda net, x, context: net.second(net.first(x, context), context),
        first=TransformerBlock(8, 12),
        second=TransformerBlock(8, 12),
    )
    graph = trace(net, torch.randn(TOKENS), torch.randn(2, 3, 12)).graph
    counts = rewrite(graph, lambda weight: True).counts
    assert (counts["pack_context"], counts["pack_qkv"], counts["pack_embedding"]) == (4, 6, 0)
    (prompt,) = [node for node in graph.nodes if node.name == "input_1"]
    assert [user.target for user in prompt.users] == [F.linear]


def test_the_prompt_cast_to_another_dtype_is_the_prompt() -> None:
    net = Forward(lambda net, x: net.a(x.float()).sum() + net.b(x.float()).sum(), a=nn.Linear(8, 4), b=nn.Linear(8, 6))
    found, _ = rewritten("pack_context", net, torch.randn(TOKENS, dtype=torch.float64))
    assert found == 2


def test_attention_is_told_where_its_operands_lie() -> None:
    net = Forward(lambda net, x, context: net.block(x, context), block=TransformerBlock(16, 12))
    inputs = torch.randn(2, 5, 16), torch.randn(2, 3, 12)
    graph = trace(net, *inputs).graph
    rewrite(graph, lambda weight: True)
    calls = [node for node in graph.nodes if node.target is attention]
    told = [[tuple(arg.meta["val"].stride()) for arg in node.args[:3]] for node in calls]
    seen: list[list[tuple[int, ...]]] = []

    def watched(*args: Any) -> torch.Tensor:
        seen.append([arg.stride() for arg in args[:3]])
        return attention(*args)

    for node in calls:
        node.target = watched
    evaluate(graph, inputs)
    assert seen == told
    # of the packed product, and of the product alone
    assert [strides[0][-2] for strides in told] == [3 * 16, 16] and told[1][1][-2] == 2 * 16


def test_the_timestep_embeddings_projections_in_one_product() -> None:
    graph = trace(UNet(), *UNet.inputs()).graph
    assert rewrite(graph, lambda weight: True).counts["pack_embedding"] == 2


@pytest.mark.parametrize(("run", "shape"), [(pack_qkv, TOKENS), (pack_context, TOKENS), (pack_embedding, EMBEDDING)])
def test_the_store_has_the_last_word(run: Any, shape: tuple[int, ...]) -> None:
    asked: list[list[str]] = []
    net = build(lambda net, x: net.a(x).sum() + net.b(x).sum()) if run is pack_context else build(sums("a", "b"))
    graph = trace(net, torch.randn(shape)).graph
    refuse = ("pack_qkv", "pack_context", "pack_embedding")
    rewrite(graph, lambda weight: True, refuse)
    assert run(graph, lambda weight: asked.append([str(ref) for ref in weight.refs]) or False) == 0
    assert asked == [["a.weight", "b.weight"]] and count(graph, F.linear) == 2
    assert run(graph, lambda weight: True) == 2 and count(graph, F.linear) == 1


def test_a_tied_weight_is_not_packed() -> None:
    net = build(sums("a", "b"))
    net.other = nn.Linear(8, 4)
    net.other.weight = net.a.weight
    found, graph = rewritten("pack_qkv", net, torch.randn(TOKENS))
    assert found == 0 and count(graph, F.linear) == 2 and net.other.weight is net.a.weight


def test_weights_of_two_dtypes_are_not_packed() -> None:
    def function(net: Any, x: torch.Tensor) -> torch.Tensor:
        y = x.sigmoid()
        return net.a(y).sum() + F.linear(y, net.e.weight.float(), net.e.bias.float()).sum() + net.b(y).sum()

    found, graph = rewritten("pack_qkv", build(function), torch.randn(TOKENS))
    assert found == 2 and count(graph, F.linear) == 2


def test_a_replaced_weight_is_followed() -> None:
    net = build(sums("a", "b", "c", "d"))
    _, graph = rewritten("pack_qkv", net, torch.randn(TOKENS))
    for parameter in net.parameters():  # the store that packed them is gone
        parameter.data = parameter.data.clone()
    net.b.weight = nn.Parameter(torch.randn(6, 8))
    with torch.no_grad():
        net.d.weight.mul_(-2)
        x = torch.randn(TOKENS)
        torch.testing.assert_close(evaluate(graph, [x])[0], net(x), rtol=1e-4, atol=1e-5)
