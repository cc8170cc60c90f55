"""Matrix products of cuBLASLt, for the ops that are one: its interface, its algorithms for a product, and a launch."""

from __future__ import annotations

from ..spec import Impl

__all__ = ["IMPLS"]

#: One for each algorithm that cuBLASLt proposes. An op that has them is measured anew for each size: the order of the proposals changes
#: with it, and the algorithm that was second at one size may be the slowest at the next.
IMPLS = (
    Impl("cublaslt", ".product", __package__),
    Impl("cublaslt_2", ".product", __package__, "launch_second"),
    Impl("cublaslt_3", ".product", __package__, "launch_third"),
    Impl("cublaslt_4", ".product", __package__, "launch_fourth"),
    Impl("cublaslt_5", ".product", __package__, "launch_fifth"),
)
