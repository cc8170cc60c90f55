"""Attention by FlashAttention, as PyTorch has it built in."""

from __future__ import annotations

import torch

from ...target import Target
from ..spec import Arguments
from .constraints import why_not_alike
from .reference import tokens_inside


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why FlashAttention can't compute this, or None. Masks are left to PyTorch's own choice."""
    if reason := why_not_alike(call, largest=256, causal=True):
        return reason
    if not torch.backends.cuda.is_flash_attention_available():
        return "this PyTorch was built without it"
    return "q is empty" if call.q.numel() == 0 else None


def launch(q, k, v, mask=None, is_causal=False, scale=None) -> torch.Tensor:
    """As :func:`.reference.attention`, without mask. Why not by ``sdpa_kernel``: see :func:`.cudnn_impl.launch`."""
    return tokens_inside(
        torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, is_causal, False, scale=scale)[0]
    )
