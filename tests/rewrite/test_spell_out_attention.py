"""nn.MultiheadAttention spelled out, and what stays whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfast_core.capture.functional import cast_like
from sfast_core.ops.attention import attention
from sfast_core.rewrite import rewrite
from sfast_core.rewrite.patterns import sdpa
from tests.models import Forward
from tests.tracing import count, evaluate, rewritten, trace

LENGTH, BATCH, WIDTH, HEADS = 5, 3, 8, 2
Function = Callable[[Any, torch.Tensor, torch.Tensor], Any]


def attend(net: Any, x: torch.Tensor, mask: torch.Tensor | None = None, **more: Any) -> torch.Tensor:
    result: torch.Tensor = net.attend(x, x, x, attn_mask=mask, need_weights=False, **more)[0]
    return result


def module(function: Function = attend, dtype: torch.dtype = torch.float32, **options: Any) -> Forward:
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(WIDTH, HEADS, **options)
    for bias in (layer.in_proj_bias, layer.out_proj.bias):
        if bias is not None:  # they begin as zeros
            nn.init.normal_(bias)
    return Forward(function, attend=layer).to(dtype)


def tokens(dtype: torch.dtype = torch.float32, length: int = LENGTH, batch: int = BATCH) -> torch.Tensor:
    return torch.randn(length, batch, WIDTH, dtype=dtype)


def causal(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full((LENGTH, LENGTH), -torch.inf, dtype=dtype).triu(1)


# name: (a module, its tokens [L, B, E] or [B, L, E])
SPELLED_OUT: dict[str, tuple[Callable[[], Forward], Callable[[], torch.Tensor]]] = {
    "OpenCLIP": (lambda: module(), tokens),
    "OpenCLIP, half": (lambda: module(dtype=torch.bfloat16), lambda: tokens(torch.bfloat16)),
    "one picture": (lambda: module(), lambda: tokens(batch=1)),
    "batch first": (lambda: module(batch_first=True), lambda: tokens().transpose(0, 1).contiguous()),
    "batch first, one picture": (lambda: module(batch_first=True), lambda: tokens(batch=1).transpose(0, 1)),
    "tokens seen from the batch": (lambda: module(), lambda: tokens().transpose(0, 1).contiguous().transpose(0, 1)),
    "tokens that lie apart": (lambda: module(), lambda: torch.randn(LENGTH, BATCH, 2 * WIDTH)[..., ::2]),
    "no mask": (lambda: module(lambda net, x, mask: attend(net, x)), tokens),
    "a mask for each head": (
        lambda: module(
            lambda net, x, mask: attend(net, x, torch.stack([mask.clamp(min=-9) * i for i in range(BATCH * HEADS)]))
        ),
        tokens,
    ),
    "no biases": (lambda: module(bias=False), tokens),
    "dropout in eval": (lambda: module(dropout=0.5), tokens),
    "no dropout in training": (lambda: module(lambda net, x, mask: attend(net.train(), x, mask)), tokens),
}


@pytest.mark.parametrize("name", SPELLED_OUT)
def test_what_is_plain_is_spelled_out(name: str) -> None:
    make, inputs = SPELLED_OUT[name]
    x = inputs()
    found, graph = rewritten("spell_out_attention", make(), x, causal(x.dtype))
    assert found == count(graph, sdpa) == 1
    assert count(graph, F.linear) == 2 and count(graph, F.multi_head_attention_forward) == 0


def with_keys(net: Any, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = net.attend(x, x + 1, x + 1, attn_mask=mask, need_weights=False)[0]
    return result


def with_values(net: Any, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = net.attend(x, x, x + 1, attn_mask=mask, need_weights=False)[0]
    return result


def with_truths(net: Any, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The function itself takes a mask of truths, True where not to look; the module hands on numbers."""
    layer = net.attend
    weights = (
        layer.in_proj_weight,
        layer.in_proj_bias,
        None,
        None,
        False,
        0.0,
        layer.out_proj.weight,
        layer.out_proj.bias,
    )
    result: torch.Tensor = F.multi_head_attention_forward(
        x, x, x, WIDTH, HEADS, *weights, training=False, need_weights=False, attn_mask=mask != 0
    )[0]
    return result


NEAR_MISSES: dict[str, Callable[[], Forward]] = {
    "other keys and values": lambda: module(with_keys),
    "other values": lambda: module(with_values),
    "weights asked for": lambda: module(lambda net, x, mask: net.attend(x, x, x, attn_mask=mask)),
    "weights asked for and dropped": lambda: module(lambda net, x, mask: net.attend(x, x, x, attn_mask=mask)[0]),
    "further keys and values": lambda: module(add_bias_kv=True),
    "a further key of zeros": lambda: module(add_zero_attn=True),
    "keys in widths of their own": lambda: module(kdim=WIDTH, vdim=WIDTH),
    "keys left out": lambda: module(lambda net, x, mask: attend(net, x, mask, key_padding_mask=mask[:BATCH] * 0)),
    "said to be causal": lambda: module(lambda net, x, mask: attend(net, x, mask, is_causal=True)),
    "a mask of truths": lambda: module(with_truths),
    "no batch": lambda: module(lambda net, x, mask: attend(net, x[:, 0], mask)),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_what_is_not_plain_stays_whole(name: str) -> None:
    net = NEAR_MISSES[name]()
    if "widths" in name:
        net.attend._qkv_same_embed_dim = False
        net.attend.in_proj_weight = None
        for part in "qkv":
            setattr(net.attend, f"{part}_proj_weight", nn.Parameter(torch.randn(WIDTH, WIDTH)))
    found, graph = rewritten("spell_out_attention", net, tokens(), causal())
    assert found == count(graph, sdpa) == 0 and count(graph, F.multi_head_attention_forward) == 1


def test_autocast_casts_the_three_one_by_one() -> None:
    """They are one all the same, and are cast once."""
    net, x, mask = module(), tokens(), causal()
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        graph, expected = trace(net, x, mask).graph, net(x, mask)
    assert count(graph, cast_like) == 8
    counts = rewrite(graph, None).counts
    assert counts["spell_out_attention"] == counts["fuse_attention"] == 1 and count(graph, cast_like) == 6
    torch.testing.assert_close(evaluate(graph, [x, mask])[0], expected)


class Block(nn.Module):
    """A block of OpenCLIP's text encoder: x [L, B, E]."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attend = nn.LayerNorm(WIDTH), nn.MultiheadAttention(WIDTH, HEADS)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x + attend(self, self.norm(x), mask)


def test_blocks_share_the_mask_and_copy_nothing_for_one_prompt() -> None:
    net = Forward(lambda net, x, mask: net.second(net.first(x, mask), mask), first=Block(), second=Block())
    x, mask = tokens(batch=1), causal()
    graph = trace(net, x, mask).graph
    assert rewrite(graph, None).counts["fuse_attention"] == 2
    attentions = [node for node in graph.nodes if node.target is attention]
    assert attentions[0].args[3] is attentions[1].args[3]
    with torch.no_grad(), torch.profiler.profile() as profile:
        got = evaluate(graph, [x, mask])[0]
    with torch.no_grad():
        assert torch.equal(got, net(x, mask))
    assert not {"aten::clone", "aten::contiguous", "aten::bmm"} & {event.key for event in profile.key_averages()}


def test_tokens_in_batches_go_through_whole_products() -> None:
    """Whether they lie as [L, B, E] or as [B, L, E], each projection is one product."""
    for net, x in ((module(), tokens()), (module(batch_first=True), tokens().transpose(0, 1).contiguous())):
        _, graph = rewritten("simplify_shapes_again", net, x, causal())
        products = [node for node in graph.nodes if node.target is F.linear]
        assert len(products) == 2 and all(node.args[0].meta["val"].is_contiguous() for node in products)
    assert count(graph, torch.permute) == 2, "the layers' own swaps of the first two dimensions are gone"
