"""From a recorded graph to a fused one: ordered passes, then the choice of impls."""

from .keep_frames import KEPT
from .pipeline import Rewritten, rewrite
from .select_impls import Call, Selection, has_impl, known_patterns, select_impls
from .write_in_place import write_in_place

__all__ = [
    "KEPT",
    "Call",
    "Rewritten",
    "Selection",
    "has_impl",
    "known_patterns",
    "rewrite",
    "select_impls",
    "write_in_place",
]
