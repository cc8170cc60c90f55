"""Attention by the op, and attention that a model wrote out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfast_core.ops.attention import attention
from sfast_core.rewrite.patterns import sdpa
from tests.models import Attention, Forward
from tests.tracing import count, rewritten

Function = Callable[[Any, torch.Tensor, torch.Tensor, torch.Tensor], Any]


def diffusers_scores(
    net: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, beta: float = 0, scale: float = 0.3
) -> torch.Tensor:
    empty = (
        torch.empty(q.shape[0], q.shape[1], k.shape[1], dtype=q.dtype)
        if beta == 0
        else torch.ones(q.shape[1], k.shape[1])
    )
    scores = torch.baddbmm(empty, q, k.transpose(-1, -2), beta=beta, alpha=scale)
    return torch.bmm(scores.softmax(dim=-1), v)


def upcast(net: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (torch.bmm(q, k.transpose(1, 2)).float() * 0.3).softmax(dim=-1).to(v.dtype) @ v


def in_heads(net: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = torch.matmul(q, k.transpose(-1, -2)) / 4.0
    return torch.matmul(F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype), v)


def clip(net: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """The CLIP of the older transformers that A1111 has: products of [B * H, L, D], a mask [B, 1, L, S] added to [B, H,
    L, S].
    """
    mask = q[:, :1, :, : k.shape[2]]
    queries, keys, values = (x.reshape(-1, *x.shape[2:]) for x in (q * 0.3, k, v))
    scores = torch.bmm(queries, keys.transpose(1, 2)).view(*q.shape[:3], -1) + mask
    weights = F.softmax(scores.view(-1, *scores.shape[2:]), dim=-1, dtype=dtype).to(v.dtype)
    return torch.bmm(weights, values).view(*q.shape[:3], -1)


def t5(net: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = q[:1, :, :, : k.shape[2]] + torch.matmul(q, k.transpose(3, 2))
    return torch.matmul(F.softmax(scores.float(), dim=-1).type_as(scores), v)


THREE, FOUR = [(4, 6, 8), (4, 5, 8), (4, 5, 8)], [(2, 2, 6, 8), (2, 2, 5, 8), (2, 2, 5, 8)]
SQUARE = [(4, 6, 6)] * 3

# name: (attention of q, k and v written out, their shapes, their dtype)
WRITTEN_OUT: dict[str, tuple[Function, Any, torch.dtype]] = {
    "baddbmm, beta 0": (diffusers_scores, THREE, torch.float32),
    "bmm": (lambda net, q, k, v: torch.bmm((torch.bmm(q, k.mT) * 0.3).softmax(-1), v), THREE, torch.float32),
    "bmm, the scale first": (
        lambda net, q, k, v: torch.bmm((0.3 * torch.bmm(q, k.mT)).softmax(2), v),
        THREE,
        torch.float32,
    ),
    "matmul": (lambda net, q, k, v: ((q @ k.mT) / 4).softmax(dim=-1) @ v, THREE, torch.float32),
    "matmul without a scale": (lambda net, q, k, v: (q @ k.mT).softmax(dim=-1) @ v, THREE, torch.float32),
    "heads": (in_heads, FOUR, torch.float32),
    "heads in half": (in_heads, FOUR, torch.float16),
    "einsum": (
        lambda net, q, k, v: torch.einsum(
            "b i j, b j d -> b i d", (torch.einsum("b i d, b j d -> b i j", q, k) * 0.3).softmax(dim=-1), v
        ),
        THREE,
        torch.float32,
    ),
    "einsum, heads": (
        lambda net, q, k, v: torch.einsum("bhqk,bhkd->bhqd", torch.einsum("bhqd,bhkd->bhqk", q, k).softmax(dim=-1), v),
        FOUR,
        torch.float32,
    ),
    "upcast scores": (upcast, THREE, torch.float16),
    "the keys transposed already": (lambda net, q, k, v: (q @ k).softmax(dim=-1) @ v, SQUARE, torch.float32),
    "two scales": (lambda net, q, k, v: ((q @ k.mT) * 0.5 / 2).softmax(dim=-1) @ v, THREE, torch.float32),
    "CLIP": (clip, FOUR, torch.float32),
    "CLIP in half": (clip, FOUR, torch.float16),
    "CLIP, autocast": (lambda net, q, k, v: clip(net, q, k, v, torch.float32), FOUR, torch.float16),
    "T5, a bias for each head": (t5, FOUR, torch.bfloat16),
    "a mask for each head": (
        lambda net, q, k, v: ((q @ k.mT) * 0.3 + q[:, :, :5]).softmax(dim=-1) @ v,
        THREE,
        torch.float32,
    ),
    "a mask for all heads": (lambda net, q, k, v: (q @ k.mT + q[0, :, :5]).softmax(dim=-1) @ v, THREE, torch.float32),
    "a mask for all queries": (
        lambda net, q, k, v: (q @ k.mT + q[:, :1, :5]).softmax(dim=-1) @ v,
        THREE,
        torch.float32,
    ),
    "a mask that is a product too": (
        lambda net, q, k, v: (v @ k.mT + q @ k.mT).softmax(dim=-1) @ v,
        SQUARE,
        torch.float32,
    ),
}


@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_attention_that_is_written_out_is_found(name: str) -> None:
    function, shapes, dtype = WRITTEN_OUT[name]
    found, graph = rewritten(
        "recover_attention", Forward(function), *(torch.randn(shape, dtype=dtype) for shape in shapes)
    )
    assert found == 1 and count(graph, sdpa) == 1
    products = count(graph, torch.bmm, torch.baddbmm, torch.matmul, torch.einsum, "matmul", "__matmul__")
    assert products == ("product" in name) and count(graph, torch.softmax, torch.empty) == 0


# name: (attention with scaled queries, how many multiplications stay)
SCALED: dict[str, tuple[Function, int]] = {
    "multiplied": (lambda net, q, k, v: ((q * 0.3) @ k.mT).softmax(dim=-1) @ v, 0),
    "divided, then seen in heads": (
        lambda net, q, k, v: ((q.transpose(0, 1) / (1 / 0.3)).transpose(0, 1) @ k.mT).softmax(dim=-1) @ v,
        0,
    ),
    "in two places": (lambda net, q, k, v: ((q * 0.6) @ k.mT / 2).softmax(dim=-1) @ v, 0),
    "and read again": (lambda net, q, k, v: attention_and(q * 0.3, k, v), 1),
    "and read again in heads": (lambda net, q, k, v: attention_and((q.mT * 0.3).mT, k, v), 1),
    "whole numbers": (lambda net, q, k, v: (((q * 4).int() * 0.3) @ k.mT).softmax(dim=-1) @ v, 2),
}


def attention_and(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    return (q @ k.mT).softmax(dim=-1) @ v, q


@pytest.mark.parametrize("name", SCALED)
def test_a_factor_of_the_queries_is_the_scale(name: str) -> None:
    function, left = SCALED[name]
    found, graph = rewritten("recover_attention", Forward(function), *(torch.randn(shape) for shape in THREE))
    (node,) = [node for node in graph.nodes if node.target is sdpa]
    assert found == 1 and count(graph, torch.mul, torch.div) == left
    assert node.args[6] == pytest.approx(1.0 if left else 0.3)


def test_queries_without_their_factor_have_their_own_strides() -> None:
    """Kernels are chosen by them."""

    def function(net: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return ((q[..., ::2] * 0.3).transpose(1, 2) @ k.mT).softmax(dim=-1) @ v

    q, k, v = torch.randn(2, 6, 2, 16), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 8)
    _, graph = rewritten("recover_attention", Forward(function), q, k, v)
    (node,) = [node for node in graph.nodes if node.target is sdpa]
    assert node.args[0].meta["val"].stride() == q[..., ::2].transpose(1, 2).stride()


def test_clip_becomes_the_op_without_a_copy() -> None:
    """What lies between the products of heads and their batch was made for the matrix products alone."""
    _, graph = rewritten("simplify_shapes_again", Forward(clip), *(torch.randn(shape) for shape in FOUR))
    (node,) = [node for node in graph.nodes if node.target is attention]
    assert [arg.op for arg in node.args[:3]] == ["placeholder"] * 3 and count(graph, torch.reshape) == 0


def probabilities_too(net: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    weights = (q @ k.mT).softmax(dim=-1)
    return weights @ v, weights


def scores_too(net: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    scores = q @ k.mT
    return scores.softmax(dim=-1) @ v, scores


def masked_scores_too(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    scores = q @ k.mT + q[:, :, :5]
    return scores.softmax(dim=-1) @ v, scores


NEAR_MISSES: dict[str, tuple[Function, Any]] = {
    "a mask that is the same for all keys": (lambda net, q, k, v: (q @ k.mT + q[:1, :, :1]).softmax(dim=-1) @ v, THREE),
    "a number for a mask": (lambda net, q, k, v: (q @ k.mT + 1.5).softmax(dim=-1) @ v, THREE),
    "a vector for a mask": (lambda net, q, k, v: (q @ k.mT + q[0, 0, :5]).softmax(dim=-1) @ v, THREE),
    "one query in several masks": (lambda net, q, k, v: (q[:, :1] @ k.mT + q[:, :, :5]).softmax(dim=-1) @ v, THREE),
    "a scale of 0": (lambda net, q, k, v: ((q @ k.mT) / 2 * 0).softmax(dim=-1) @ v, THREE),
    "two masks": (lambda net, q, k, v: (q @ k.mT + q[:, :, :5] + q[:1, :, :5]).softmax(dim=-1) @ v, THREE),
    "a mask of truth values": (lambda net, q, k, v: (q @ k.mT + (q[:, :, :5] > 0)).softmax(dim=-1) @ v, THREE),
    "a mask in another dtype": (
        lambda net, q, k, v: (q.half() @ k.half().mT + q[:, :, :5]).softmax(dim=-1).half() @ v.half(),
        THREE,
    ),
    "a mask of twice its weight": (
        lambda net, q, k, v: torch.add(q @ k.mT, q[:, :, :5], alpha=2).softmax(dim=-1) @ v,
        THREE,
    ),
    "a mask with more heads": (lambda net, q, k, v: (q[:1] @ k[:1].mT + q[:, :, :5]).softmax(dim=-1) @ v, THREE),
    "the mask scaled too": (lambda net, q, k, v: ((q @ k.mT + q[:, :, :5]) * 0.3).softmax(dim=-1) @ v, THREE),
    "masked, softmax over the queries": (lambda net, q, k, v: (q @ k.mT + q[:, :, :5]).softmax(dim=1) @ v, THREE),
    "masked scores used again": (lambda net, q, k, v: masked_scores_too(q, k, v), THREE),
    "masked in other rows": (
        lambda net, q, k, v: ((q @ k.mT).view(4, 5, 6) + q[:, :5, :6]).view(4, 6, 5).softmax(dim=-1) @ v,
        THREE,
    ),
    "the heads turned behind the mask": (
        lambda net, q, k, v: (
            ((q @ k.mT).view(2, 2, 6, 5) + q[0, :, :5]).transpose(0, 1).reshape(4, 6, 5).softmax(dim=-1) @ v
        ),
        THREE,
    ),
    "a mask for three dimensions of batch": (
        lambda net, q, k, v: ((q @ k.mT).view(2, 1, 2, 6, 5) + q[0, :, :5]).view(4, 6, 5).softmax(dim=-1) @ v,
        THREE,
    ),
    "baddbmm, beta 1": (lambda net, q, k, v: diffusers_scores(net, q, k, v, beta=1), THREE),
    "a scale that is a tensor": (lambda net, q, k, v: ((q @ k.mT) * q[0, 0, 0]).softmax(dim=-1) @ v, THREE),
    "softmax over the queries": (lambda net, q, k, v: (q @ k.mT).softmax(dim=1) @ v, THREE),
    "softmax of something else": (lambda net, q, k, v: (q @ k.mT).exp().softmax(dim=-1) @ v, THREE),
    "the weights used again": (probabilities_too, THREE),
    "the scores used again": (scores_too, THREE),
    "weights changed": (lambda net, q, k, v: ((q @ k.mT).softmax(dim=-1) * 0.5) @ v, THREE),
    "one head's keys for all": (lambda net, q, k, v: (q @ k[:1].mT).softmax(dim=-1) @ v, THREE),
    "each head's weights for all values": (lambda net, q, k, v: (q @ k.mT).view(4, 1, 6, 5).softmax(dim=-1) @ v, THREE),
    "matrices": (lambda net, q, k, v: (q[0] @ k[0].T).softmax(dim=-1) @ v[0], THREE),
    "five dimensions": (lambda net, q, k, v: (q[None] @ k[None].mT).softmax(dim=-1) @ v[None], FOUR),
    "values in another dtype": (lambda net, q, k, v: (q @ k.mT).softmax(dim=-1).double() @ v.double(), THREE),
    "einsum with the weights transposed": (
        lambda net, q, k, v: torch.einsum("bij,bid->bjd", torch.einsum("bid,bjd->bij", q, k).softmax(dim=-1), v),
        [(4, 5, 8)] * 3,
    ),
    "einsum of vectors": (lambda net, q, k, v: torch.einsum("i,j->ij", q[0, 0].softmax(dim=-1), v[0, 0]), THREE),
    "einsum of a matrix and a vector": (
        lambda net, q, k, v: torch.einsum("ij,j->i", q[0].softmax(dim=-1), v[0, 0]),
        THREE,
    ),
    "einsum over the rest": (
        lambda net, q, k, v: torch.einsum("...ij,...jd->...id", (q @ k.mT).softmax(dim=-1), v),
        THREE,
    ),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_what_is_not_attention_stays(name: str) -> None:
    function, shapes = NEAR_MISSES[name]
    found, graph = rewritten("recover_attention", Forward(function), *(torch.randn(shape) for shape in shapes))
    assert found == 0 and count(graph, sdpa) == 0 and count(graph, torch.softmax) == 1


# name: (a call of SDPA, whether the op takes it)
CALLS: dict[str, tuple[Function, bool]] = {
    "plain": (lambda net, q, k, v: F.scaled_dot_product_attention(q, k, v), True),
    "a mask": (lambda net, q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=q[0, 0, :, :5] > 0), True),
    "causal and scaled": (
        lambda net, q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.7),
        True,
    ),
    "one batch for several": (lambda net, q, k, v: F.scaled_dot_product_attention(q[:1], k, v), True),
    "grouped": (lambda net, q, k, v: F.scaled_dot_product_attention(q, k[:, :1], v[:, :1], enable_gqa=True), True),
    "could be grouped": (lambda net, q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True), True),
    "one head of keys for all": (lambda net, q, k, v: F.scaled_dot_product_attention(q, k[:, :1], v), True),
    "one head of queries": (lambda net, q, k, v: F.scaled_dot_product_attention(q[:, :1], k, v), True),
    "no batch": (lambda net, q, k, v: F.scaled_dot_product_attention(q[0, 0], k[0, 0], v[0, 0]), False),
    "five dimensions, grouped": (
        lambda net, q, k, v: F.scaled_dot_product_attention(q[None], k[None], v[None], enable_gqa=True),
        False,
    ),
    "five dimensions": (lambda net, q, k, v: F.scaled_dot_product_attention(q[None], k[None], v[None]), False),
}


@pytest.mark.parametrize("name", CALLS)
def test_sdpa_becomes_the_op(name: str) -> None:
    function, taken = CALLS[name]
    found, graph = rewritten("fuse_attention", Forward(function), *(torch.randn(shape) for shape in FOUR))
    assert found == count(graph, attention) == int(taken)


# name: (SDPA on 3-D tensors, whether the op takes it)
ONE_HEAD: dict[str, tuple[Function, bool]] = {
    "plain": (lambda net, q, k, v: F.scaled_dot_product_attention(q, k, v), True),
    "causal and scaled": (
        lambda net, q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.7),
        True,
    ),
    "other values": (lambda net, q, k, v: F.scaled_dot_product_attention(q, k, v[..., :3]), True),
    "a mask for all": (lambda net, q, k, v: F.scaled_dot_product_attention(q, k, v, q[0, :, :5]), True),
    "a mask for each": (lambda net, q, k, v: F.scaled_dot_product_attention(q, k, v, q[:, :, :5]), True),
    "a mask for all queries of each": (
        lambda net, q, k, v: F.scaled_dot_product_attention(q, k, v, q[:, :1, :5]),
        True,
    ),
    "a mask of truths": (
        lambda net, q, k, v: F.scaled_dot_product_attention(q, k, v, (q[:, :, :5] > 0) | (q[:, :, :5] == q[:, :, :1])),
        True,
    ),
    "a mask of the keys": (lambda net, q, k, v: F.scaled_dot_product_attention(q, k, v, q[0, 0, :5]), False),
    "one batch of queries": (lambda net, q, k, v: F.scaled_dot_product_attention(q[:1], k, v), False),
    "one batch of keys": (lambda net, q, k, v: F.scaled_dot_product_attention(q, k[:1], v[:1]), False),
}


@pytest.mark.parametrize("name", ONE_HEAD)
def test_sdpa_without_heads_is_the_op_with_one(name: str) -> None:
    """Masks and batches that would be broadcast otherwise with a head are left alone."""
    function, taken = ONE_HEAD[name]
    found, graph = rewritten("fuse_attention", Forward(function), *(torch.randn(shape) for shape in THREE))
    assert found == count(graph, attention) == int(taken)
    for node in graph.nodes:
        if node.target is attention:
            q, k, v = (x.meta["val"] for x in node.args[:3])
            assert {x.shape[:2] for x in (q, k, v)} == {(4, 1)} and node.meta["val"].shape == (4, 1, 6, v.shape[3])


def vae_block(net: Any, x: torch.Tensor) -> torch.Tensor:
    """Attention in A1111's VAE, with --opt-sdp-attention."""
    y = net.norm(x)
    q, k, v = (conv(y).permute(0, 2, 3, 1).reshape(2, 16, 8).contiguous() for conv in (net.q, net.k, net.v))
    out = F.scaled_dot_product_attention(q, k, v).reshape(2, 4, 4, 8).permute(0, 3, 1, 2)
    return x + net.out(out)


def test_the_one_head_of_a_vae_is_read_where_it_lies() -> None:
    """Its 1x1 convolutions are matrix products by then, so each token's values lie side by side,
    which kernels ask for.
    """
    net = Forward(vae_block, norm=nn.GroupNorm(2, 8), **{name: nn.Conv2d(8, 8, 1) for name in ("q", "k", "v", "out")})
    _, graph = rewritten("simplify_shapes_again", net, torch.randn(2, 8, 4, 4))
    (node,) = [node for node in graph.nodes if node.target is attention]
    assert [tuple(x.meta["val"].shape) for x in node.args[:3]] == [(2, 1, 16, 8)] * 3
    assert [x.meta["val"].stride(3) for x in node.args[:3]] == [1] * 3


def test_the_ops_meta_value_is_what_it_returns() -> None:
    _, graph = rewritten("fuse_attention", Attention(16), torch.randn(2, 5, 16))
    (node,) = [node for node in graph.nodes if node.target is attention]
    q, k, v = (torch.randn(2, 2, 5, 8) for _ in range(3))
    assert node.meta["val"].stride() == attention(q, k, v).stride() and node.meta["val"].shape == q.shape


def test_tokens_seen_in_a_row_are_a_view_of_its_result() -> None:
    """Whatever the recorded call's result was: passes behind it ask whether a reshape copies."""
    forward = lambda net, q, k, v: F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 5, 16)  # noqa: E731
    _, graph = rewritten("fuse_attention", Forward(forward), *(torch.randn(2, 2, 5, 8) for _ in range(3)))
    (turned,) = [node for node in graph.nodes if node.target is torch.permute]
    assert turned.meta["val"].is_contiguous()


def test_a_factor_of_keys_is_the_scores() -> None:
    """As T5 has it in ComfyUI; a factor that others read stays."""
    way = lambda net, q, k, v: F.scaled_dot_product_attention(q, (k.transpose(1, 2) * 8**0.5).transpose(1, 2), v)  # noqa: E731
    _, graph = rewritten("fuse_attention", Forward(way), *(torch.randn(1, 2, 5, 8) for _ in range(3)))
    (node,) = [node for node in graph.nodes if node.target is attention]
    assert node.args[5] == pytest.approx(1.0) and count(graph, torch.mul) == 0
    shared = lambda net, q, k, v: (lambda twice: F.scaled_dot_product_attention(q, twice, v) + twice)(k * 2)  # noqa: E731
    _, graph = rewritten("fuse_attention", Forward(shared), *(torch.randn(1, 2, 5, 8) for _ in range(3)))
    assert count(graph, torch.mul) == 1
