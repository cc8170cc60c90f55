"""Attention in front of the first look at a prompt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfast_core.ops.attention import attention
from sfast_core.ops.attention_of_halves import attention_of_halves
from sfast_core.rewrite.passes import share_halves as rewrite_share_halves
from tests.models import Forward
from tests.tracing import count, rewritten

IMAGE, TIMESTEP, PROMPT = torch.randn(2, 8, 4, 4), torch.tensor([7, 7]), torch.randn(2, 3, 8)
Function = Callable[..., Any]


def attend(q: torch.Tensor, other: torch.Tensor, **options: Any) -> torch.Tensor:
    """One head of the tokens [B, L, 8]."""
    return F.scaled_dot_product_attention(q[:, None], other[:, None], other[:, None], **options)[:, 0]


def tokens(x: torch.Tensor) -> torch.Tensor:
    return x.flatten(2).transpose(1, 2)


def block(net: Any, x: torch.Tensor, t: torch.Tensor, prompt: torch.Tensor, **options: Any) -> torch.Tensor:
    """Self-attention, cross-attention, and self-attention of what that gives."""
    y = net.lin(tokens(x)) + t[:, None, None]
    y = y + attend(y, y, **options)
    y = y + attend(y, prompt)
    return y + attend(y, y)


# name: (forward of image, timestep and prompt, attention that looks for halves)
FORWARDS: dict[str, tuple[Function, int]] = {
    "a block": (block, 1),
    "causal": (lambda net, *args: block(net, *args, is_causal=True), 0),
    "masked": (lambda net, x, t, p: block(net, x, t, p, attn_mask=tokens(x)[:, None, :, :1]), 0),
    "one query for several heads": (
        lambda net, x, t, p: (
            F.scaled_dot_product_attention(tokens(x), *[tokens(x)[:, None].repeat(1, 2, 1, 1)] * 2),
            p * 2,
        ),
        0,
    ),
    "a prompt in the embedding": (lambda net, x, t, p: block(net, x, t + p.mean((1, 2)), p), 0),
    "without a look at the prompt": (lambda net, x, t, p: (attend(tokens(x), tokens(x)), p * 2), 1),
}


@pytest.fixture(autouse=True)
def _any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewrite_share_halves, "_FEWEST", 0)


def build(function: Function) -> Forward:
    torch.manual_seed(0)
    return Forward(function, lin=nn.Linear(8, 8))


@pytest.mark.parametrize("name", FORWARDS)
def test_what_knows_no_prompt_looks_for_halves(name: str) -> None:
    function, shared = FORWARDS[name]
    found, graph = rewritten("share_halves", build(function), IMAGE, TIMESTEP, PROMPT, has_impl=lambda *_: True)
    assert found == count(graph, attention_of_halves) == shared


def test_without_a_prompt_nothing_does() -> None:
    net = build(lambda net, x: attend(tokens(x), tokens(x)))
    assert rewritten("share_halves", net, IMAGE, has_impl=lambda *_: True)[0] == 0


def test_without_an_impl_it_stays() -> None:
    found, graph = rewritten(
        "share_halves", build(block), IMAGE, TIMESTEP, PROMPT, has_impl=lambda op, *_: op is not attention_of_halves
    )
    assert found == 0 and count(graph, attention) == 3


def test_a_few_tokens_are_computed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """2 x 1 x 16 x 16 scores."""
    for fewest, shared in ((512, 1), (513, 0)):
        monkeypatch.setattr(rewrite_share_halves, "_FEWEST", fewest)
        assert rewritten("share_halves", build(block), IMAGE, TIMESTEP, PROMPT, has_impl=lambda *_: True)[0] == shared


def test_the_scale_goes_along() -> None:
    _, graph = rewritten(
        "share_halves", build(lambda *args: block(*args, scale=0.3)), IMAGE, TIMESTEP, PROMPT, has_impl=lambda *_: True
    )
    (node,) = [node for node in graph.nodes if node.target is attention_of_halves]
    assert node.args[3] == 0.3
