"""What couldn't be had, and when: a host that starts every hour needn't wait for the same failure each time."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path


def lately(memory: Path, key: str, within_s: float) -> str | None:
    """Why what ``key`` stands for failed less than ``within_s`` ago; None where it didn't, or where that isn't known.

    Args:
        memory: the file that :func:`remember` writes.
        key: all that the failure depended on.
        within_s: for how long it counts.
    """
    try:
        kept = json.loads(memory.read_text(encoding="utf-8"))
        if kept["key"] == key and 0 <= time.time() - kept["time"] < within_s:
            return str(kept.get("reason") or "it failed before")
    except Exception:  # whatever lies there
        pass
    return None


def remember(memory: Path, key: str, reason: str) -> None:
    """Keep that ``key`` has failed just now, in the place of what failed before."""
    draft = memory.with_name(f"{memory.name}.{os.getpid()}")
    try:
        memory.parent.mkdir(exist_ok=True)
        draft.write_text(json.dumps({"key": key, "time": time.time(), "reason": reason}), encoding="utf-8")
        os.replace(draft, memory)
    except OSError:
        pass  # then it is tried again at the next start
