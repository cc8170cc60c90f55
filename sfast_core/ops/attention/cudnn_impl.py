"""Attention by cuDNN: the fastest on Hopper and Blackwell, and it reads packed projections in place."""

from __future__ import annotations

import functools

import torch

from ...target import Target
from ..spec import Arguments
from .constraints import why_not_alike
from .reference import is_grouped, tokens_inside

RULED_HEAD = 128  # head sizes that every cuDNN 9 has; above, PyTorch is asked
# cuDNN before 9.15.1 accesses memory out of bounds where L or S is no multiple of 128 (pytorch#169849)
REPAIRED = 91501
_ALIGNED_BYTES = 16


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why cuDNN can't compute this, or None."""
    if target.numerics.deterministic:
        return "PyTorch doesn't count it among its deterministic algorithms"
    if reason := why_not_alike(call, largest=256, masked=True, causal=True, grouped=True):
        return reason
    if call.mask is not None and (
        call.mask.dtype not in (torch.bool, call.q.dtype) or call.mask.requires_grad or call.is_causal
    ):
        return f"the mask is {call.mask.dtype}, must be torch.bool or {call.q.dtype}, without causal attention"
    if call.mask is not None and not 2 <= call.mask.dim() <= 4:
        return f"the mask is {list(call.mask.shape)}, must have 2 to 4 dimensions"
    version = torch.backends.cudnn.version() or 0
    if version < 90000:
        return f"needs cuDNN 9, this is {version}"
    queries, keys = call.q.shape[2], call.k.shape[2]
    if version < REPAIRED and (queries % 128 or keys % 128):
        return f"cuDNN {version} is not safe for {queries} queries and {keys} keys, not multiples of 128"
    if keys == 1:
        return "one key alone is not supported"
    if max(call.q.shape[:2]) > 65535:
        return f"batch or heads are more than 65535 ({tuple(call.q.shape[:2])})"
    if call.q.numel() == 0:
        return "q is empty"
    if call.q.shape[3] > RULED_HEAD and not _takes_head(target.device, call.q.dtype, call.q.shape[3]):
        return f"head size {call.q.shape[3]} is not supported by cuDNN {version} on this GPU"
    return None


@functools.cache
def _takes_head(device: torch.device, dtype: torch.dtype, head: int) -> bool:
    """Whether PyTorch would hand this head size to cuDNN: that depends on the GPU, on cuDNN and on its build."""
    if not torch.cuda.is_available():
        return False
    with torch.cuda.device(device):
        x = torch.empty(1, 1, 128, head, dtype=dtype, device=device)
        return torch.backends.cuda.can_use_cudnn_attention(
            torch.backends.cuda.SDPAParams(x, x, x, None, 0.0, False, False)
        )


def launch(q, k, v, mask=None, is_causal=False, scale=None) -> torch.Tensor:
    """As :func:`.reference.attention`. A query that may see no key gets a mean of all values.

    The operator behind ``scaled_dot_product_attention`` is called as it is: ``sdpa_kernel`` would choose it too, by
    switches that are global to the process, while kernels are tried and measured in several threads.
    """
    if is_grouped(q, k, v):
        k, v = (_each_group(tensor, q.shape[1] // k.shape[1]) for tensor in (k, v))
    added = None if mask is None else _added(mask, q, k.shape[2])
    return tokens_inside(
        torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, added, False, 0.0, is_causal, False, scale=scale)[0]
    )


def _each_group(heads: torch.Tensor, times: int) -> torch.Tensor:
    """[B, H, S, D] as [B, H * times, S, D], each head several times beside itself."""
    return heads[:, :, None].expand(-1, -1, times, -1, -1).flatten(1, 2)


def _added(mask: torch.Tensor, q: torch.Tensor, keys: int) -> torch.Tensor:
    """A mask in four dimensions that is added to the scores, in rows of ``keys`` numbers that begin where cuDNN assumes
    it: what lies otherwise, such as T5's bias by position with its heads innermost, is copied. What a boolean one
    leaves out gets the lowest number, since only infinities would be no number.
    """
    mask = mask[(None,) * (4 - mask.dim())].expand(-1, -1, -1, keys)
    if mask.dtype == torch.bool:
        return q.new_zeros(mask.shape).masked_fill_(~mask, torch.finfo(q.dtype).min)
    return mask.contiguous() if mask.stride(3) != 1 or mask.data_ptr() % _ALIGNED_BYTES else mask
