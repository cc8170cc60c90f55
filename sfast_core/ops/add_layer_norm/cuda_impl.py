"""Residual addition and LayerNorm in one kernel of the CUDA extension, for which nothing is compiled at run time.

Within SDXL it takes 6.6 us where Triton's takes 7.6 (H100; docs/notes/0047-what-a-norm-takes-along.md).
The kernel is in ``csrc/add_layer_norm.cu``.
"""

from __future__ import annotations

import torch

from ...native import load
from ...target import Target
from ..packs import PACK_BYTES, dense
from ..row_constraints import why_not_sum
from ..spec import Arguments

MOST_PACKS = 5  #: of a thread
MOST_THREADS = 512  #: of a row


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why the kernel can't compute this, or None."""
    if reason := why_not_sum(call.x, call.residual, x_bias=call.x_bias, sum_bias=call.sum_bias):
        return reason
    packs, rest = divmod(call.x.shape[-1] * call.x.element_size(), PACK_BYTES)
    threads = 1
    while packs > MOST_PACKS * threads and packs % (2 * threads) == 0:
        threads *= 2
    if rest or packs == 0 or packs > MOST_PACKS * threads or threads > MOST_THREADS:
        return (
            f"rows of {call.x.shape[-1]} channels are not 1 to {MOST_PACKS} times a power of two, {MOST_THREADS} at"
            f" most, of {PACK_BYTES} bytes"
        )
    return None


def launch(x, residual, weight, bias, eps, x_bias=None, sum_bias=None) -> tuple[torch.Tensor, torch.Tensor]:
    """As :func:`.reference.add_layer_norm`."""
    rows_in = dense(x)
    out = torch.empty_like(rows_in)
    total = None if residual is None else torch.empty_like(rows_in)
    residual, x_bias, sum_bias, weight, bias = (
        None if tensor is None else dense(tensor) for tensor in (residual, x_bias, sum_bias, weight, bias)
    )
    load.launch(
        "sfast_add_layer_norm",
        x.device,
        f"add_layer_norm for x {tuple(x.shape)} {x.dtype}",
        x=rows_in,
        residual=residual,
        x_bias=x_bias,
        sum_bias=sum_bias,
        weight=weight,
        bias=bias,
        sum=total,
        out=out,
        rows=x.numel() // max(1, x.shape[-1]),
        channels=x.shape[-1],
        eps=eps,
        dtype=load.DTYPES[x.dtype],
    )
    return x if total is None else total, out
