"""group_norm_act by the CUDA extension: the launches. The kernels, and how they cut up the work, are in ``csrc/group_norm_act.cu``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...native import load
from .constraints import why_not_arguments
from .reference import channels_of

if TYPE_CHECKING:
    from ...target import Target
    from ..spec import Arguments

ACTS = {"none": 0, "silu": load.SILU}
MAX_POSITIONS = 2**31 - 1


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why the kernels can't compute this, or None."""
    if reason := why_not_arguments(call):
        return reason
    if call.x.shape[2] * call.x.shape[3] > MAX_POSITIONS:
        return f"images of {call.x.shape[2]} x {call.x.shape[3]} are too large"
    # The most that a block may need: two floats per channel, and per group a mean, a deviation and the parts that merge to them.
    channels = channels_of(call.x, call.tail)
    shared_bytes = 4 * (2 * channels + 5 * max(call.num_groups, 16))
    if shared_bytes > target.shared_memory_bytes:
        return f"{channels} channels need {shared_bytes} bytes of shared memory, a block here has {target.shared_memory_bytes}"
    return None


def launch(
    x: torch.Tensor,
    num_groups: int,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    act: str = "none",
    channel_add: torch.Tensor | None = None,
    tail: torch.Tensor | None = None,
    *,
    flags: int = 0,
) -> torch.Tensor:
    """As :func:`.reference.group_norm_act`, with float32 arithmetic throughout: ``x + channel_add`` is not rounded to x's dtype.

    ``flags`` may be ``load.ONE_KERNEL`` or ``load.TWO_KERNELS``, to overrule the choice by shape in tests and benchmarks.

    Raises:
        ExtensionUnavailable: the extension isn't built.
        ExtensionError: CUDA refused a kernel.
    """
    library = load.library()
    out_format = torch.channels_last if x.is_contiguous(memory_format=torch.channels_last) else torch.contiguous_format
    x, tail = (None if t is None else t.contiguous(memory_format=torch.channels_last) for t in (x, tail))
    n, c, h, w = x.shape[0], channels_of(x, tail), x.shape[2], x.shape[3]
    out = torch.empty((n, c, h, w), dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    weight, bias = (None if t is None else t.contiguous() for t in (weight, bias))
    channel_add, add_stride = addend(channel_add)
    with torch.cuda.device_of(x):
        workspace_bytes = library.sfast_group_norm_act_workspace_bytes(n, num_groups)
        workspace = torch.empty(workspace_bytes // 4, dtype=torch.float32, device=x.device)
        status = library.sfast_group_norm_act(
            x.data_ptr(),
            load.pointer(tail),
            c - x.shape[1],
            out.data_ptr(),
            *load.vector(weight),
            *load.vector(bias),
            *load.vector(channel_add),
            add_stride,
            n,
            h * w,
            c,
            num_groups,
            eps,
            load.DTYPES[x.dtype],
            ACTS[act] | flags,
            workspace.data_ptr(),
            workspace_bytes,
            torch.cuda.current_stream(x.device).cuda_stream,
        )
    load.check(status, f"group_norm_act for x {tuple(x.shape)} {x.dtype}")
    return out.contiguous(memory_format=out_format)


def addend(channel_add: torch.Tensor | None) -> tuple[torch.Tensor | None, int]:
    """``channel_add`` as the kernels read it, and the elements from one image's row to the next: rows may lie apart, as slices do."""
    if channel_add is None:
        return None, 0
    rows = channel_add if channel_add.stride(1) == 1 else channel_add.contiguous()
    return rows, 0 if rows.shape[0] == 1 else rows.stride(0)
