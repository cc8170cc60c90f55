"""All sinusoids in one kernel of the CUDA extension.

PyTorch takes up to seven, each as short as a kernel can be (H100: 2 us, so 14).

The kernel is in ``csrc/sinusoids.cu``.
"""

from __future__ import annotations

import torch

from ...native import load
from ...target import Target
from ..spec import Arguments
from .reference import sinusoids

_KINDS = load.DTYPES | {torch.int64: load.INT64}


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why the kernel can't compute this, or None."""
    if call.frequencies.dtype != torch.float32 or call.dtype not in load.DTYPES:
        return f"frequencies are {call.frequencies.dtype} and the result {call.dtype}, must be float32 and a float"
    if (
        call.x.dim() != 2
        or call.x.shape[1] != 1
        or call.frequencies.dim() not in (1, 2)
        or call.frequencies.numel() != call.frequencies.shape[-1]
    ):
        return f"x is {list(call.x.shape)}, frequencies {list(call.frequencies.shape)}, must be [N, 1] and [1, H]"
    return None


def launch(x, frequencies, sines_first, dtype) -> torch.Tensor:
    """As :func:`.reference.sinusoids`. Timesteps in main memory, where a graph may compute first, stay there."""
    if not x.is_cuda:
        return sinusoids(x, frequencies, sines_first, dtype)
    rows, count = x.shape[0], frequencies.shape[-1]
    factors = frequencies.contiguous()
    out = torch.empty((rows, 2 * count), dtype=dtype, device=x.device)
    load.launch(
        "sfast_sinusoids",
        x.device,
        f"sinusoids for x {tuple(x.shape)} {x.dtype}, {count} frequencies",
        x=x,
        x_dtype=_KINDS[x.dtype],
        x_stride=x.stride(0),
        frequencies=factors,
        out=out,
        rows=rows,
        count=count,
        sines_first=sines_first,
        dtype=load.DTYPES[dtype],
    )
    return out
