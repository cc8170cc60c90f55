"""Attention by the op, and attention that a model wrote out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from sfast_core.ops.attention import attention
from sfast_core.rewrite.canonicalise import sdpa
from tests.models import Attention, Forward
from tests.tracing import count, rewritten

Function = Callable[[Any, torch.Tensor, torch.Tensor, torch.Tensor], Any]


def diffusers_scores(net: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, beta: float = 0, scale: float = 0.3) -> torch.Tensor:
    empty = torch.empty(q.shape[0], q.shape[1], k.shape[1], dtype=q.dtype) if beta == 0 else torch.ones(q.shape[1], k.shape[1])
    scores = torch.baddbmm(empty, q, k.transpose(-1, -2), beta=beta, alpha=scale)
    return torch.bmm(scores.softmax(dim=-1), v)


def upcast(net: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (torch.bmm(q, k.transpose(1, 2)).float() * 0.3).softmax(dim=-1).to(v.dtype) @ v


def in_heads(net: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = torch.matmul(q, k.transpose(-1, -2)) / 4.0
    return torch.matmul(F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype), v)


THREE, FOUR = [(4, 6, 8), (4, 5, 8), (4, 5, 8)], [(2, 2, 6, 8), (2, 2, 5, 8), (2, 2, 5, 8)]
SQUARE = [(4, 6, 6)] * 3

# name: (attention of q, k and v written out, their shapes, their dtype)
WRITTEN_OUT: dict[str, tuple[Function, Any, torch.dtype]] = {
    "baddbmm, beta 0": (diffusers_scores, THREE, torch.float32),
    "bmm": (lambda net, q, k, v: torch.bmm((torch.bmm(q, k.mT) * 0.3).softmax(-1), v), THREE, torch.float32),
    "bmm, the scale first": (lambda net, q, k, v: torch.bmm((0.3 * torch.bmm(q, k.mT)).softmax(2), v), THREE, torch.float32),
    "matmul": (lambda net, q, k, v: ((q @ k.mT) / 4).softmax(dim=-1) @ v, THREE, torch.float32),
    "matmul without a scale": (lambda net, q, k, v: (q @ k.mT).softmax(dim=-1) @ v, THREE, torch.float32),
    "heads": (in_heads, FOUR, torch.float32),
    "heads in half": (in_heads, FOUR, torch.float16),
    "einsum": (
        lambda net, q, k, v: torch.einsum("b i j, b j d -> b i d", (torch.einsum("b i d, b j d -> b i j", q, k) * 0.3).softmax(dim=-1), v),
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
}


@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_attention_that_is_written_out_is_found(name: str) -> None:
    function, shapes, dtype = WRITTEN_OUT[name]
    found, graph = rewritten("recover_attention", Forward(function), *(torch.randn(shape, dtype=dtype) for shape in shapes))
    assert found == 1 and count(graph, sdpa) == 1
    assert count(graph, torch.softmax, torch.bmm, torch.baddbmm, torch.matmul, torch.einsum, torch.empty, "matmul", "__matmul__") == 0


def probabilities_too(net: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    weights = (q @ k.mT).softmax(dim=-1)
    return weights @ v, weights


def scores_too(net: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    scores = q @ k.mT
    return scores.softmax(dim=-1) @ v, scores


NEAR_MISSES: dict[str, tuple[Function, Any]] = {
    "a mask": (lambda net, q, k, v: (q @ k.mT + q[:1, :, :1]).softmax(dim=-1) @ v, THREE),
    "baddbmm, beta 1": (lambda net, q, k, v: diffusers_scores(net, q, k, v, beta=1), THREE),
    "a scale that is a tensor": (lambda net, q, k, v: ((q @ k.mT) * q[0, 0, 0]).softmax(dim=-1) @ v, THREE),
    "softmax over the queries": (lambda net, q, k, v: (q @ k.mT).softmax(dim=1) @ v, THREE),
    "softmax of something else": (lambda net, q, k, v: (q @ k.mT).exp().softmax(dim=-1) @ v, THREE),
    "the weights used again": (probabilities_too, THREE),
    "the scores used again": (scores_too, THREE),
    "weights changed": (lambda net, q, k, v: ((q @ k.mT).softmax(dim=-1) * 0.5) @ v, THREE),
    "one head's keys for all": (lambda net, q, k, v: (q @ k[:1].mT).softmax(dim=-1) @ v, THREE),
    "matrices": (lambda net, q, k, v: (q[0] @ k[0].T).softmax(dim=-1) @ v[0], THREE),
    "five dimensions": (lambda net, q, k, v: (q[None] @ k[None].mT).softmax(dim=-1) @ v[None], FOUR),
    "values in another dtype": (lambda net, q, k, v: (q @ k.mT).softmax(dim=-1).double() @ v.double(), THREE),
    "einsum with the weights transposed": (
        lambda net, q, k, v: torch.einsum("bij,bid->bjd", torch.einsum("bid,bjd->bij", q, k).softmax(dim=-1), v),
        [(4, 5, 8)] * 3,
    ),
    "einsum of vectors": (lambda net, q, k, v: torch.einsum("i,j->ij", q[0, 0].softmax(dim=-1), v[0, 0]), THREE),
    "einsum of a matrix and a vector": (lambda net, q, k, v: torch.einsum("ij,j->i", q[0].softmax(dim=-1), v[0, 0]), THREE),
    "einsum over the rest": (lambda net, q, k, v: torch.einsum("...ij,...jd->...id", (q @ k.mT).softmax(dim=-1), v), THREE),
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
    "causal and scaled": (lambda net, q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.7), True),
    "three dimensions": (lambda net, q, k, v: F.scaled_dot_product_attention(q[0], k[0], v[0]), False),
    "grouped": (lambda net, q, k, v: F.scaled_dot_product_attention(q, k[:, :1], v[:, :1], enable_gqa=True), False),
}


@pytest.mark.parametrize("name", CALLS)
def test_sdpa_becomes_the_op(name: str) -> None:
    function, taken = CALLS[name]
    found, graph = rewritten("fuse_attention", Forward(function), *(torch.randn(shape) for shape in FOUR))
    assert found == count(graph, attention) == int(taken)


def test_the_ops_meta_value_is_what_it_returns() -> None:
    _, graph = rewritten("fuse_attention", Attention(16), torch.randn(2, 5, 16))
    (node,) = [node for node in graph.nodes if node.target is attention]
    q, k, v = (torch.randn(2, 2, 5, 8) for _ in range(3))
    assert node.meta["val"].stride() == attention(q, k, v).stride() and node.meta["val"].shape == q.shape
