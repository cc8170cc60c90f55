"""Attention with narrow heads by a kernel of the CUDA extension, on Hopper: others pad heads of 40 to 64.

H100, fp16, us: 2 x 8 heads of 40 and 4096 tokens 118, cuDNN 160; 2 x 20 of 64 and 1024 tokens 29.7 and 34.6; 2 x 10 of
64 and 3952 tokens 180 and 205, and 4096 tokens 179 and 181. The kernel is in ``csrc/attention.cu``; :mod:`.tiling` says
how it is used.
"""

from __future__ import annotations

import ctypes
import functools

import torch

from ...native import load
from ...target import Target
from ..spec import Arguments
from .constraints import steps, why_not_aligned, why_not_alike
from .reference import tokens_inside
from .tiling import WARPGROUPS, Tiling, best_tiling

HEADS = tuple(WARPGROUPS)
FEWEST_KEYS = 129  #: fewer have a kernel of their own, triton_cross
MOST_HEADS = 65535  #: of all images together
MOST_ROWS = 2**31 - 512  #: coordinates are 32-bit, those of the last block's end too
ALIGNMENT = 16  # bytes

_Strides = ctypes.c_int64 * 3
_Tiling = ctypes.c_int32 * len(Tiling._fields)


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why the kernel can't compute this, or None."""
    if reason := why_not_alike(call):
        return reason
    if call.q.shape[3] not in HEADS:
        return f"head size {call.q.shape[3]} is not one of {HEADS}"
    if call.k.shape[2] < FEWEST_KEYS:
        return f"{call.k.shape[2]} keys are fewer than {FEWEST_KEYS}"
    if call.scale is not None and call.scale <= 0:
        return f"scale is {call.scale}, must be positive"
    if call.q.shape[0] * call.q.shape[1] > MOST_HEADS:
        return f"batch x heads is {call.q.shape[0] * call.q.shape[1]}, more than {MOST_HEADS}"
    if max(call.q.shape[2], call.k.shape[2]) > MOST_ROWS:
        return f"there are {call.q.shape[2]} queries and {call.k.shape[2]} keys"
    return why_not_aligned(call.q, call.k, call.v)


def launch(q, k, v, mask=None, is_causal=False, scale=None) -> torch.Tensor:
    """As :func:`.reference.attention`, without mask."""
    batch, heads, queries, head = q.shape
    return launch_tiled(tiling_on(q.device, batch * heads, queries, k.shape[2], head), q, k, v, scale)


def launch_tiled(
    tiling: Tiling,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float | None = None,
    half: Tiling | None = None,
    differ: torch.Tensor | None = None,
) -> torch.Tensor:
    """As :func:`launch`, cut as told.

    With ``half`` the second half of the batch may be the first one again: where it is, bit for bit, the first half's
    heads are cut like that and computed for both. ``differ``, 4 bytes on the device, becomes 0 there and 1 elsewhere.
    """
    batch, heads, queries, head = q.shape
    out = q.new_empty((batch, queries, heads, head))
    q, k, v = (_rows(tensor) for tensor in (q, k, v))
    load.launch(
        "sfast_attention",
        q.device,
        f"attention for q {tuple(q.shape)}, k {tuple(k.shape)} {q.dtype}",
        q=q,
        q_strides=_strides(q),
        k=k,
        k_strides=_strides(k),
        v=v,
        v_strides=_strides(v),
        out=out,
        images=batch,
        heads=heads,
        queries=queries,
        keys=k.shape[2],
        head=head,
        scale=head**-0.5 if scale is None else scale,
        dtype=load.DTYPES[q.dtype],
        cut=_Tiling(*tiling),
        half_cut=None if half is None else _Tiling(*half),
        differ=differ,
    )
    return out.transpose(1, 2)


@functools.cache
def tiling_on(device: torch.device, heads: int, queries: int, keys: int, head: int) -> Tiling:
    """The best cut on ``device``; ``heads`` of all images together."""
    return best_tiling(heads, queries, keys, head, torch.cuda.get_device_properties(device).multi_processor_count)


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` [B, H, L, D] as TMA can read it; copied only where rows overlap or don't begin on 16 bytes."""
    apart = all(step >= tensor.shape[3] and step % 8 == 0 for step in steps(tensor))
    if apart and tensor.stride(3) == 1 and tensor.data_ptr() % ALIGNMENT == 0:
        return tensor
    return tokens_inside(tensor.clone())


def _strides(tensor: torch.Tensor) -> ctypes.Array[ctypes.c_int64]:
    """Elements from one row, head and image to the next; of one alone a multiple of 8, as TMA wants it."""
    batch, heads, rows = (
        stride if size > 1 else tensor.shape[3]
        for size, stride in zip(tensor.shape[:3], tensor.stride()[:3], strict=True)
    )
    return _Strides(rows, heads, batch)
