"""Matrix products of cuBLASLt, for the ops that are one: its interface, its algorithms for a product, and a launch."""

from __future__ import annotations

import torch

from ..spec import Impl

__all__ = ["IMPLS", "family"]

#: One for each algorithm that cuBLASLt proposes. The order of the proposals changes with the size: the one that is second at one size may be
#: the slowest at the next, so that only the first is taken over. Of the first eight, one of the first three is within 2% of the fastest at
#: nearly all shapes of SD1.5 and SDXL (docs/notes/0007); trying five took a second more at each new resolution of SDXL.
IMPLS = (
    Impl("cublaslt", ".product", __package__),
    Impl("cublaslt_2", ".product", __package__, "launch_second", carries_over=False),
    Impl("cublaslt_3", ".product", __package__, "launch_third", carries_over=False),
    # Only where PyTorch may sum so, too.
    Impl("cublaslt_fp16", ".half_sums", __package__),
    Impl("cublaslt_fp16_2", ".half_sums", __package__, "launch_second", carries_over=False),
    Impl("cublaslt_fp16_3", ".half_sums", __package__, "launch_third", carries_over=False),
)


def family(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *_: object) -> tuple[str, int]:
    """What decides between them besides the size, and the size."""
    return f"{x.dtype} {tuple(weight.shape)} {bias is not None}", x.numel()
