"""What ends a call's way through its program while code that runs live is at work."""

from __future__ import annotations


class AnotherStructure(BaseException):
    """Live code returns something built otherwise than in the recorded call, or calls back otherwise.

    The message says what.

    No ``Exception``: it passes through that code, which may catch those.
    """
