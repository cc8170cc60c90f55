"""Errors that a user can fix: they are shown as a sentence, without a traceback."""

from __future__ import annotations


class FarmError(Exception):
    """The message says what came, and what is needed."""
