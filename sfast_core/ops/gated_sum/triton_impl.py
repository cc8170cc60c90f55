"""One Triton kernel, which reads all tensors where they lie."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ...target import Target
from ..row_constraints import why_not_modulation, why_not_sum
from ..spec import Arguments
from ..triton_launch import launcher
from ..triton_rows import image_and_part, last_part, modulation_rows, modulation_strides

_BLOCK_C = 1024
_WARPS = 2  # 16 elements a thread


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why the kernel can't compute this, or None."""
    return why_not_sum(call.x, call.residual) or why_not_modulation(call.x, call.part, gate=call.gate)


@triton.jit(do_not_specialize=["L", "part", "last"])
def gated_sum_kernel(
    x_ptr,  # [B, L, C], C beside one another, like all
    gate_ptr,  # [B or 1, P, C]
    residual_ptr,  # [B, L, C] or None
    out_ptr,  # [B, L, C], contiguous
    L,
    C,
    part,  # tokens of a row of the gate; the last has all that are left
    last,  # P - 1
    x_image, x_token, gate_image, gate_part, residual_image, residual_token,  # strides; 0: all have one
    SIGMOID: tl.constexpr,
    BLOCK_C: tl.constexpr,
):  # fmt: skip
    """BLOCK_C channels of a token a program. Float32 arithmetic.

    Bytes moved: x, residual and out once each, and a token's own gate; one of many tokens stays in L2.
    """
    row = tl.program_id(0).to(tl.int64)
    image, of = image_and_part(row, L, part, last)
    token = row % L
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    live = c < C
    x = tl.load(x_ptr + image * x_image + token * x_token + c, mask=live, other=0.0)
    gate = tl.load(gate_ptr + image * gate_image + of * gate_part + c, mask=live, other=0.0).to(tl.float32)
    if SIGMOID:
        gate = tl.sigmoid(gate)
    total = gate * x.to(tl.float32)
    if residual_ptr is not None:
        total += tl.load(residual_ptr + image * residual_image + token * residual_token + c, mask=live, other=0.0).to(
            tl.float32
        )
    tl.store(out_ptr + row * C + c, total.to(out_ptr.dtype.element_ty), mask=live)


def launch(x, gate, residual=None, act="none", part=1) -> torch.Tensor:
    """As :func:`.reference.gated_sum`."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if out.numel():
        images, length, channels = x.shape
        rows = modulation_rows(x, gate, residual)
        strides = modulation_strides(rows)
        launcher(gated_sum_kernel, (images * length, triton.cdiv(channels, _BLOCK_C)))(
            *rows,
            out,
            length,
            channels,
            part,
            last_part((gate,)),
            *strides,
            SIGMOID=act == "sigmoid",
            BLOCK_C=_BLOCK_C,
            num_warps=_WARPS,
        )
    return out
