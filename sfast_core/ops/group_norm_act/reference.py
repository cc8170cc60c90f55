"""The meaning of ``group_norm_act`` in plain PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F

ACTS = ("none", "silu")


def group_norm_act(
    x: torch.Tensor,
    num_groups: int,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    act: str = "none",
    channel_add: torch.Tensor | None = None,
    tail: torch.Tensor | None = None,
) -> torch.Tensor:
    """``act(GN(cat(x, tail) + channel_add[:, :, None, None]))``, ``GN(v) = (v - mean) / sqrt(var + eps) * weight +
    bias``.

    The mean and the (biased) variance are those of one image's group of C / G neighbouring channels.

    Args:
        x: [B, C, H, W], float; with ``tail`` [B, C - C', H, W].
        num_groups: G, which divides C.
        weight: [C] or None (ones). Its dtype may differ from x's; the computation then runs in float32.
        bias: [C] or None (zeros), as ``weight``.
        eps: added to the variance.
        act: "none" or "silu".
        channel_add: [B, C] or [1, C] or None, as ``weight``: the timestep embedding of a residual block.
        tail: [B, C', H, W] in x's dtype, whose channels come behind x's, or None.

    Returns:
        [B, C, H, W] in x's dtype, channels_last if x is, otherwise contiguous. Never aliases x.

    Raises:
        ValueError: act is none of the above.
    """
    if act not in ACTS:
        raise ValueError(f"group_norm_act: act is {act!r}, must be one of {', '.join(ACTS)}")
    x = joined(x, tail)
    dtype = x.dtype
    channels_last = x.is_contiguous(memory_format=torch.channels_last)
    if any(tensor is not None and tensor.dtype != dtype for tensor in (weight, bias, channel_add)):
        x = x.float()
        weight, bias, channel_add = (None if t is None else t.float() for t in (weight, bias, channel_add))
    if channel_add is not None:
        x = x + channel_add[:, :, None, None]
    out = F.group_norm(x, num_groups, weight, bias, eps)
    if act == "silu":
        out = F.silu(out)
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    return out.to(dtype).contiguous(memory_format=memory_format)


def joined(x: torch.Tensor, tail: torch.Tensor | None) -> torch.Tensor:
    """x with the channels of ``tail`` behind its own, in x's layout."""
    return x if tail is None else torch.cat([x, tail], dim=1)


def channels_of(x: torch.Tensor, tail: torch.Tensor | None) -> int:
    """How many channels x has with those of ``tail``."""
    return x.shape[1] + (0 if tail is None else tail.shape[1])
