"""What the doctor finds."""

from __future__ import annotations

from dataclasses import dataclass

OK, NOTE, PROBLEM = "ok", "note", "problem"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        state: ``ok``; ``note``: worth knowing, nothing is slower for it on a usual model; ``problem``: the fastest way
            is not open.
        name: what was looked at.
        text: what was found.
        mend: how to fix it, or None.
    """

    state: str
    name: str
    text: str
    mend: str | None = None
