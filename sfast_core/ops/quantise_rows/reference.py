"""The meaning of ``quantise_rows`` in plain PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..hadamard import rotate

LIMITS = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}  #: the largest value of each dtype that is used
SMALLEST_SCALE = 1e-30  #: of a row of zeros
ACTS = ("none", "silu", "gelu", "gelu_tanh", "swiglu", "geglu")
GATED = ("swiglu", "geglu")  #: these halve the row


def activate(x: torch.Tensor, act: str) -> torch.Tensor:
    """``x`` [..., K] behind an activation; [..., 2 K] where that is gated: "swiglu" is ``silu(x[:K]) * x[K:]``, "geglu" ``x[:K] * gelu(x[K:])``."""
    if act == "none":
        return x
    if act == "silu":
        return F.silu(x)
    if act in ("gelu", "gelu_tanh"):
        return F.gelu(x, approximate="tanh" if act == "gelu_tanh" else "none")
    first, second = x.chunk(2, dim=-1)
    return F.silu(first) * second if act == "swiglu" else first * F.gelu(second)


def quantise_values(values: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """float32 ``values`` [..., K] in ``dtype``, rounded to nearest, and the scale of each row: values = q * scales but for the rounding."""
    limit = LIMITS[dtype]
    scales = (values.abs().amax(-1, keepdim=True) / limit).clamp(min=SMALLEST_SCALE)
    scaled = (values / scales).clamp(-limit, limit)
    return (scaled.round() if dtype == torch.int8 else scaled).to(dtype), scales


def quantise_rows(x: torch.Tensor, dtype: torch.dtype, act: str = "none", rotation: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """``v = rotate(act(x))`` in 8 bits, each row with a scale of its own.

    Args:
        x: [..., K], float16, bfloat16 or float32; [..., 2 K] for an act that is gated.
        dtype: torch.int8 or torch.float8_e4m3fn.
        act: one of ACTS.
        rotation: channels that are rotated together (:mod:`..hadamard`), 0 for none; K is a multiple of it.

    Returns:
        q [..., K] in ``dtype``, scales [..., 1] in float32, contiguous. All is in float32 before it is rounded, once.
    """
    return quantise_values(rotate(activate(x.float(), act), rotation), dtype)
