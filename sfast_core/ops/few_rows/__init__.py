"""Matrix products of few rows, for the ops that are one: the weight is all that is read, once."""

from __future__ import annotations

from ..spec import Impl

__all__ = ["IMPL", "IMPL_WITH_ACT"]

#: Its time grows with the rows, cuBLASLt's doesn't: what was the faster at 2 may be the slower at 4.
IMPL = Impl("cuda_few", ".product", __package__, carries_over=False)
IMPL_WITH_ACT = Impl("cuda_few", ".with_act", __package__)
