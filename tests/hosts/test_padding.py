"""Prompts of a causal model, padded: what comes out is what comes out without,
and the same call serves many lengths.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from sfast_core.hosts.comfy.padding import may_be_padded, padded, padded_length


class Causal(nn.Module):
    """A layer as the host's language models have it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.project = nn.Linear(8, 24)

    def forward(
        self,
        x: Any,
        attention_mask: Any = None,
        embeds: Any = None,
        num_tokens: Any = None,
        position_ids: Any = None,
        past_key_values: Any = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if past_key_values is not None:
            raise NotImplementedError
        length = embeds.shape[1]
        if position_ids is None:
            position_ids = torch.arange(length)[None]
        q, k, v = self.project(embeds + position_ids[0, :, None] / 8).chunk(3, -1)
        mask = torch.full((length, length), torch.finfo(q.dtype).min / 4).triu(1)
        if attention_mask is not None:
            mask = mask + (1 - attention_mask[:, None].to(q.dtype)) * torch.finfo(q.dtype).min / 4
        out = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return out, torch.stack([q, out], dim=1)


class Bidirectional(nn.Module):
    """Takes no cache: what comes behind a token may matter to it."""

    def forward(self, x: Any, attention_mask: Any = None, embeds: Any = None) -> Any:
        return embeds


def run(net: nn.Module, **given: Any) -> tuple[dict[str, Any], Any]:
    """The longer call's arguments, and its result, cut."""
    longer = padded(net, (None,), given)
    assert longer is not None and longer.written == {"embeds"}
    return longer.kwargs, longer.cut(net(**longer.kwargs))


class OlderElsewhere(nn.Module):
    """As ComfyUI had them up to 0.8, where nothing is kept of a call: a forward that others have, too."""

    def forward(self, x: Any, attention_mask: Any = None, embeds: Any = None, position_ids: Any = None) -> Any:
        return embeds


class Older(OlderElsewhere):
    """In the file of ComfyUI's that has causal models alone."""

    __module__ = "comfy.text_encoders.llama"


@pytest.mark.parametrize("length", [1, 7, 63, 64, 65, 130])
@pytest.mark.parametrize("mask", ["none", "all", "padded on the left", "padded on the right"])
@pytest.mark.parametrize("positions", [False, True])
def test_it_gives_what_the_call_gives(length: int, mask: str, positions: bool) -> None:
    net, x = Causal(), torch.randn(2, length, 8)
    seen = None if mask == "none" else torch.ones(2, length, dtype=torch.long)
    if seen is not None and mask != "all" and length > 2:
        seen[1, slice(0, 2) if "left" in mask else slice(-2, None)] = 0
    given = {
        "embeds": x,
        "attention_mask": seen,
        "position_ids": torch.arange(length).expand(3, length) if positions else None,
    }
    arguments, got = run(net, **given, num_tokens=[length])
    assert "num_tokens" not in arguments and arguments["embeds"].shape[1] == padded_length(length)
    for mine, theirs in zip(got, net(None, **given), strict=True):
        assert mine.shape == theirs.shape and mine.is_contiguous()
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def test_lengths_that_have_one_call() -> None:
    assert [padded_length(length) for length in (1, 64, 65, 512, 513, 768, 769)] == [64, 64, 128, 512, 768, 768, 1024]


def test_what_stays_as_it_is() -> None:
    net, x = Causal(), torch.randn(1, 7, 8)
    assert may_be_padded(net) and not may_be_padded(Bidirectional())
    assert may_be_padded(Older()) and not may_be_padded(OlderElsewhere())
    assert padded(net, (torch.ones(1, 7, dtype=torch.long),), {}) is None, "tokens, which are embedded inside"
    assert padded(net, (None,), {"embeds": x, "past_key_values": []}) is None, "it goes on from what it has kept"
    assert padded(net, (None,), {"embeds": x, "attention_mask": torch.ones(1, 7, 7)}) is None, "a mask of pairs"
    assert padded(net, (None,), {"embeds": x, "unknown": 1}) is None
