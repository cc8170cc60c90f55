"""Attention by PyTorch's memory-efficient kernel: slower than others, but for every GPU and head size (VAE's 512)."""

from __future__ import annotations

import torch

from ...target import Target
from ..spec import Arguments
from .constraints import why_not_alike
from .reference import tokens_inside


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why the kernel can't compute this, or None. Masks are left to PyTorch's own choice."""
    if reason := why_not_alike(call, causal=True):
        return reason
    if call.q.dtype == torch.bfloat16 and target.capability < (8, 0):
        return "bfloat16 needs compute capability 8.0"
    if any(tensor.storage_offset() % 8 for tensor in (call.q, call.k, call.v)):
        return "q, k and v do not begin on 16 bytes"
    return "q is empty" if call.q.numel() == 0 else None


def launch(q, k, v, mask=None, is_causal=False, scale=None) -> torch.Tensor:
    """As :func:`.reference.attention`, without mask. Why not by ``sdpa_kernel``: see :func:`.cudnn_impl.launch`."""
    return tokens_inside(
        torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, None, False, 0.0, is_causal, scale=scale)[0]
    )
