"""group_norm_act by the CUDA extension: the launches.

The kernels, and how they cut up the work, are in ``csrc/group_norm_act.cu``.
"""

from __future__ import annotations

from typing import Any

import torch

from ...native import load
from ...target import Target
from ..packs import contiguous
from ..spec import Arguments
from .constraints import why_not_arguments
from .reference import channels_of

ACTS = {"none": 0, "silu": load.SILU}
MAX_POSITIONS = 2**31 - 1


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why the kernels can't compute this, or None."""
    if reason := why_not_arguments(call):
        return reason
    if call.x.shape[2] * call.x.shape[3] > MAX_POSITIONS:
        return f"images of {call.x.shape[2]} x {call.x.shape[3]} are too large"
    # The most that a block may need: two floats per channel, and per group a mean, a deviation and the parts that merge
    # to them.
    channels = channels_of(call.x, call.tail)
    shared_bytes = 4 * (2 * channels + 5 * max(call.num_groups, 16))
    if shared_bytes > target.shared_memory_bytes:
        return (
            f"{channels} channels need {shared_bytes} bytes of shared memory, a block here has"
            f" {target.shared_memory_bytes}"
        )
    return None


def launch(
    x, num_groups, weight, bias, eps, act="none", channel_add=None, tail=None, *, flags: int = 0
) -> torch.Tensor:
    """As :func:`.reference.group_norm_act`, in float32: ``x + channel_add`` is not rounded to x's dtype.

    ``flags`` may be ``load.ONE_KERNEL`` or ``load.TWO_KERNELS``, to overrule the choice by shape in tests and
    benchmarks.
    """
    out_format = torch.channels_last if x.is_contiguous(memory_format=torch.channels_last) else torch.contiguous_format
    x, tail = (None if t is None else t.contiguous(memory_format=torch.channels_last) for t in (x, tail))
    out = torch.empty(
        (x.shape[0], channels_of(x, tail), *x.shape[2:]),
        dtype=x.dtype,
        device=x.device,
        memory_format=torch.channels_last,
    )
    with torch.cuda.device_of(x):
        workspace_bytes = load.library().sfast_group_norm_act_workspace_bytes(x.shape[0], num_groups)
    load.launch(
        "sfast_group_norm_act",
        x.device,
        f"group_norm_act for x {tuple(x.shape)} {x.dtype}",
        **arguments(x, tail, out, num_groups, weight, bias, eps, channel_add),
        flags=ACTS[act] | flags,
        workspace=torch.empty(workspace_bytes // 4, dtype=torch.float32, device=x.device),
        workspace_bytes=workspace_bytes,
    )
    return out.contiguous(memory_format=out_format)


def arguments(
    x: torch.Tensor,
    tail: torch.Tensor | None,
    out: torch.Tensor,
    num_groups: int,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    channel_add: torch.Tensor | None,
) -> dict[str, Any]:
    """What both kernels' functions take; x, tail and out dense in channels_last."""
    weight, bias = contiguous(weight, bias)
    rows, row_stride = _rows(channel_add)
    n, c, h, w = out.shape
    return {
        "x": x,
        "tail": tail,
        "tail_c": c - x.shape[1],
        "y": out,
        "weight": weight,
        "weight_dtype": load.dtype_of(weight),
        "bias": bias,
        "bias_dtype": load.dtype_of(bias),
        "channel_add": rows,
        "channel_add_dtype": load.dtype_of(rows),
        "channel_add_stride": row_stride,
        "n": n,
        "hw": h * w,
        "c": c,
        "groups": num_groups,
        "eps": eps,
        "dtype": load.DTYPES[x.dtype],
    }


def _rows(channel_add: torch.Tensor | None) -> tuple[torch.Tensor | None, int]:
    """``channel_add`` as the kernels read it, and the elements from row to row, which may lie apart as slices do."""
    if channel_add is None:
        return None, 0
    rows = channel_add if channel_add.stride(1) == 1 else channel_add.contiguous()
    return rows, 0 if rows.shape[0] == 1 else rows.stride(0)
