"""The meaning of ``attention`` in plain PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> torch.Tensor:
    """``softmax(scale * q @ k.T + mask) @ v``, the softmax over the keys.

    Args:
        q: [B, H, L, D]; mostly a strided view of a packed projection, the last dimension contiguous.
        k: [B, H, S, D], or of fewer heads, of which each is that of as many queries' heads beside one another.
        v: [B, H, S, D'], of as many heads as k.
        mask: broadcastable to [B, H, L, S], added to the scores; boolean: False leaves a key out. Not with
            ``is_causal``.
        is_causal: query i sees the keys 0..i alone.
        scale: None for 1 / sqrt(D).

    Returns:
        [B, H, L, D'] in q's dtype, laid out so that ``out.transpose(1, 2).reshape(B, L, H * D')`` is a view.
    """
    grouped = {"enable_gqa": True} if is_grouped(q, k, v) else {}
    return tokens_inside(
        F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=is_causal, scale=scale, **grouped)
    )


def is_grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
    """Whether each head of the keys and values is several queries'."""
    return q.dim() == 4 and k.shape[1] == v.shape[1] != q.shape[1] and k.shape[1] > 0 and q.shape[1] % k.shape[1] == 0


def tokens_inside(out: torch.Tensor) -> torch.Tensor:
    """``out`` [B, H, L, D] in memory ordered as [B, L, H, D]: copied only where it is not."""
    return out.transpose(1, 2).contiguous().transpose(1, 2)
