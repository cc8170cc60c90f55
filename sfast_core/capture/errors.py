"""Why a call can't be captured. The engine turns each into the original forward and a line in the report."""

from __future__ import annotations


class CaptureError(Exception):
    """The call can't be captured faithfully. The message is the reason, for the report and the log."""
