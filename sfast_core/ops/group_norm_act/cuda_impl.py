"""group_norm_act by the CUDA extension: the launches. The kernels, and how they cut up the work, are in ``csrc/group_norm_act.cu``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...native import load
from ..constraints import why_no_cuda, why_not_dtypes
from .reference import joined

if TYPE_CHECKING:
    from ...target import Target

ACTS = {"none": 0, "silu": load.SILU}
MAX_POSITIONS = 2**31 - 1


def why_not(
    target: Target,
    x: torch.Tensor,
    num_groups: int,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    act: str = "none",
    channel_add: torch.Tensor | None = None,
    tail: torch.Tensor | None = None,
) -> str | None:
    """The reason why the kernels can't compute this, or None."""
    if reason := why_no_cuda(target, (7, 5)) or why_not_dtypes(x=x, weight=weight, bias=bias, channel_add=channel_add, tail=tail):
        return reason
    if x.dim() != 4:
        return f"x is {x.dim()}-D, must be 4-D"
    channels, positions = x.shape[1] + (0 if tail is None else tail.shape[1]), x.shape[2] * x.shape[3]
    if num_groups <= 0 or channels % num_groups:
        return f"{channels} channels are not a multiple of {num_groups} groups"
    if positions > MAX_POSITIONS:
        return f"images of {x.shape[2]} x {x.shape[3]} are too large"
    if act not in ACTS:
        return f"act {act!r} is not supported"
    # The most that a block may need: two floats per channel, and per group a mean, a deviation and the parts that merge to them.
    shared_bytes = 4 * (2 * channels + 5 * max(num_groups, 16))
    if shared_bytes > target.shared_memory_bytes:
        return f"{channels} channels need {shared_bytes} bytes of shared memory, a block here has {target.shared_memory_bytes}"
    return load.why_not(target.device)


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
    x = joined(x, tail)
    out_format = torch.channels_last if x.is_contiguous(memory_format=torch.channels_last) else torch.contiguous_format
    x = x.contiguous(memory_format=torch.channels_last)
    out = torch.empty_like(x, memory_format=torch.channels_last)
    n, c, h, w = x.shape
    weight, bias = (None if t is None else t.contiguous() for t in (weight, bias))
    channel_add, add_stride = addend(channel_add)
    with torch.cuda.device_of(x):
        workspace_bytes = library.sfast_group_norm_act_workspace_bytes(n, num_groups)
        workspace = torch.empty(workspace_bytes // 4, dtype=torch.float32, device=x.device)
        status = library.sfast_group_norm_act(
            x.data_ptr(),
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
    if status != 0:
        error = load.error_name(library, status)
        raise load.ExtensionError(f"group_norm_act: CUDA refused the kernel for x {tuple(x.shape)} {x.dtype}: {error}")
    return out.contiguous(memory_format=out_format)


def addend(channel_add: torch.Tensor | None) -> tuple[torch.Tensor | None, int]:
    """``channel_add`` as the kernels read it, and the elements from one image's row to the next: rows may lie apart, as slices do."""
    if channel_add is None:
        return None, 0
    rows = channel_add if channel_add.stride(1) == 1 else channel_add.contiguous()
    return rows, 0 if rows.shape[0] == 1 else rows.stride(0)
