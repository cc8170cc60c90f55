"""What a user can mend: a sentence, shown without a traceback."""

from __future__ import annotations


class FarmError(Exception):
    """Says what came, and what is needed."""
