"""From a recorded graph to a fused one: ordered passes, then the choice of impls."""

from .pipeline import Rewritten, rewrite
from .select_impls import Call, Selection, has_impl, select_impls

__all__ = ["Call", "Rewritten", "Selection", "has_impl", "rewrite", "select_impls"]
