"""The CUDA extension's attention, which compares a batch's halves on the GPU and computes equal ones once.

Nothing is taken for granted: a batch of other images costs the comparison.
"""

from __future__ import annotations

import torch

from ...native import counters
from ...target import Target
from ..attention import cuda_impl
from ..spec import Arguments


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why the kernel can't compute this, or None."""
    if call.q.shape[0] % 2:
        return f"a batch of {call.q.shape[0]} has no halves"
    return cuda_impl.why_not(target, Arguments(mask=None, is_causal=False, **vars(call)))


def launch(q, k, v, scale=None) -> torch.Tensor:
    """As :func:`.reference.attention_of_halves`."""
    batch, heads, queries, head = q.shape
    whole, half = (
        cuda_impl.tiling_on(q.device, images * heads, queries, k.shape[2], head) for images in (batch, batch // 2)
    )
    differ = counters.take(4, q.device)
    if differ is None:
        differ = torch.empty(4, dtype=torch.uint8, device=q.device)
    return cuda_impl.launch_tiled(whole, q, k, v, scale, half, differ)
