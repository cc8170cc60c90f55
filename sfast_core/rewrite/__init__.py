"""From a recorded graph to a fused one: ordered passes, then the choice of impls."""

from .passes.keep_frames import KEPT
from .passes.write_in_place import write_in_place
from .pipeline import Rewritten, rewrite
from .select_impls import Call, Selection, has_impl, known_patterns, select_impls

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
