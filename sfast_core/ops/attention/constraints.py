"""Reasons that the attention impls share."""

from __future__ import annotations

import torch

from ..needs import HALVES
from ..spec import Arguments
from .reference import is_grouped

_MULTIPLE = 8  # elements of 16 bits in 16 bytes, which all of these kernels load at once


def why_not_alike(
    call: Arguments, *, largest: int | None = None, masked: bool = False, causal: bool = False, grouped: bool = False
) -> str | None:
    """Whether q, k and v are alike and of a head size that a kernel takes.

    Args:
        call: an attention's.
        largest: head size that it takes; None: any.
        masked: whether it takes masks.
        causal: whether it takes causal attention, of as many queries as keys.
        grouped: whether it takes keys of fewer heads.
    """
    q, k, v = call.q, call.k, call.v
    if any(tensor.dim() != 4 for tensor in (q, k, v)):
        return "q, k and v must be 4-D"
    if q.dtype not in HALVES or k.dtype != q.dtype or v.dtype != q.dtype:
        return f"q, k and v are {', '.join(str(tensor.dtype).removeprefix('torch.') for tensor in (q, k, v))}"
    alike = q.shape[1] == k.shape[1] or (grouped and is_grouped(q, k, v))
    if not alike or q.shape[0] != k.shape[0] or k.shape != v.shape or q.shape[3] != k.shape[3]:
        return f"q, k and v are of different shapes ({', '.join(str(tuple(tensor.shape)) for tensor in (q, k, v))})"
    if q.shape[3] % _MULTIPLE:
        return f"head size {q.shape[3]} is not a multiple of {_MULTIPLE}"
    if largest is not None and q.shape[3] > largest:
        return f"head size {q.shape[3]} is larger than {largest}"
    if k.shape[2] == 0:
        return "there are no keys"
    if any(tensor.stride(3) != 1 for tensor in (q, k, v)):
        return "the last dimension is not contiguous"
    if call.mask is not None and not masked:
        return "masks are not supported"
    if call.is_causal and not causal:
        return "causal attention is not supported"
    if call.is_causal and q.shape[2] != k.shape[2]:
        return f"causal attention of {q.shape[2]} queries and {k.shape[2]} keys is not supported"
    return None


def steps(tensor: torch.Tensor) -> list[int]:
    """The strides of ``tensor`` [B, H, L, D] but the last, of dimensions of several elements: others say nothing."""
    return [stride for size, stride in zip(tensor.shape[:3], tensor.stride()[:3], strict=True) if size > 1]


def why_not_aligned(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> str | None:
    """Whether every row of q, k and v begins on 16 bytes, as far as can be told before they lie anywhere."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if any(step % 8 for step in steps(tensor)) or tensor.storage_offset() % 8:
            return f"{name}'s rows are not 16-byte aligned (strides {tuple(tensor.stride())})"
    return None
