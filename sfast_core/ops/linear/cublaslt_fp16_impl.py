"""The product of float16 summed in float16, as PyTorch computes it too where it is allowed to: twice as fast on many
GPUs, on a data centre's no faster.
"""

from __future__ import annotations

from ...target import Target
from ..spec import Arguments, ranked
from . import cublaslt_impl


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why cuBLASLt can't or mayn't compute this, or None."""
    if not target.numerics.fp16_accumulation:
        return "PyTorch isn't allowed to sum in float16"
    return cublaslt_impl.why_not(target, call)


launch = ranked(cublaslt_impl.launch_rank, 0, "launch", __name__, half_sums=True)
launch_second = ranked(cublaslt_impl.launch_rank, 1, "launch_second", __name__, half_sums=True)
launch_third = ranked(cublaslt_impl.launch_rank, 2, "launch_third", __name__, half_sums=True)
