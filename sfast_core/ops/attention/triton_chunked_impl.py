"""Attention with heads too wide for fused kernels (the VAE's 512): scores of some queries at a time, in float32.

PyTorch's one backend for them is an sm_80 kernel at 120 TFLOP/s (H100, fp16, 1 head of 512, 16,384 tokens: 4.6 of a
1024x1024 decoder's 23.4 ms). Two matrix products and a softmax between them move a gigabyte or two more and are faster.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from ...target import Target
from ..spec import Arguments
from ..triton_launch import launcher
from .constraints import why_not_alike
from .reference import tokens_inside

WIDEST_FUSED = 256  #: head size; up to it others have kernels
MAX_KEYS = 32768  # a row of scores stays in one program's registers
SCORE_BYTES = 128 << 20  # of one chunk, in float32


@triton.jit(do_not_specialize=["keys"])
def softmax_kernel(
    scores,  # [rows, keys] float32, contiguous
    out,  # [rows, keys], written
    keys,
    factor,  # scale * log2(e)
    BLOCK: tl.constexpr,  # a power of two >= keys
):
    """``out = softmax(scale * scores)``, a row a program."""
    first = tl.program_id(0).to(tl.int64) * keys
    column = tl.arange(0, BLOCK)
    live = column < keys
    x = tl.load(scores + first + column, mask=live, other=float("-inf")) * factor
    weight = tl.exp2(x - tl.max(x, 0))
    tl.store(out + first + column, (weight / tl.sum(weight, 0)).to(out.dtype.element_ty), mask=live)


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why this can't compute it, or why others are known to be faster; or None."""
    if reason := why_not_alike(call):
        return reason
    if call.q.shape[3] <= WIDEST_FUSED:
        return f"head size {call.q.shape[3]} has fused kernels"
    if call.k.shape[2] > MAX_KEYS:
        return f"{call.k.shape[2]} keys are more than {MAX_KEYS}"
    if call.scale is not None and call.scale <= 0:
        return f"scale is {call.scale}, must be positive"
    return None if "dtype" in torch.ops.aten.bmm.overloads() else "needs PyTorch 2.8: torch.bmm with a float32 result"


def launch(q, k, v, mask=None, is_causal=False, scale=None) -> torch.Tensor:
    """As :func:`.reference.attention`, without mask; in float32, but weights rounded to q's dtype."""
    batch, heads, queries, depth = q.shape
    q, k, v = (tensor.reshape(batch * heads, tensor.shape[2], depth) for tensor in (q, k, v))
    rows = max(64, SCORE_BYTES // (4 * batch * heads * k.shape[1]))
    parts = []
    for some in q.split(rows, 1):
        weights = _softmax(_scores(some, k), q.dtype, depth**-0.5 if scale is None else scale)
        parts.append(torch.bmm(weights, v))
    return tokens_inside(torch.cat(parts, 1).view(batch, heads, queries, depth))


def _scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """``q @ k.T`` in float32, [N, rows, keys]."""
    if q.device.type != "cuda":  # PyTorch has it on CUDA alone
        return torch.bmm(q.float(), k.float().transpose(1, 2))
    return torch.bmm(q, k.transpose(1, 2), out_dtype=torch.float32)


def _softmax(scores: torch.Tensor, dtype: torch.dtype, scale: float) -> torch.Tensor:
    weights = torch.empty(scores.shape, dtype=dtype, device=scores.device)
    keys = scores.shape[2]
    block = triton.next_power_of_2(keys)
    if weights.numel() > 0:
        launcher(softmax_kernel, (scores.shape[0] * scores.shape[1],))(
            scores, weights, keys, scale * math.log2(math.e), BLOCK=block, num_warps=min(16, max(4, block // 2048))
        )
    return weights
