"""The queue's state as data, for ``status``."""

from __future__ import annotations

from typing import Any

from .store import Store

_RECENT_S = 60.0
_LISTED = 20
_TIMED = 2000  # jobs, whose times the estimates begin with


def overview(store: Store, now: float, batch: int | None = None) -> dict[str, Any]:
    """Counts by state, results a minute, time left of what runs, what was set aside; of a ``batch``, or of all."""
    where, values = ("WHERE batch = ?", [batch]) if batch is not None else ("WHERE 1", [])
    counts = {"waiting": 0, "running": 0, "done": 0, "aside": 0}
    counts |= {
        row["state"]: row["n"]
        for row in store.query(f"SELECT state, COUNT(*) AS n FROM jobs {where} GROUP BY state", values)
    }
    recent = store.query("SELECT COUNT(*) AS n FROM jobs WHERE state = 'done' AND finished > ?", [now - _RECENT_S])[0][
        "n"
    ]
    aside = store.query(
        f"SELECT id, name, reason, log FROM jobs {where} AND state = 'aside' ORDER BY finished DESC LIMIT {_LISTED}",
        values,
    )
    delayed = store.query(
        f"SELECT reason, COUNT(*) AS n FROM jobs {where} AND state = 'waiting' AND reason IS NOT NULL GROUP BY reason"
        f" LIMIT {_LISTED}",
        values,
    )
    return {"jobs": counts, "per_minute": round(recent * 60 / _RECENT_S, 1), "aside": aside, "delayed": delayed}


def timings(store: Store) -> list[dict[str, Any]]:
    """``needs`` (as JSON), ``seconds`` and ``cold`` of the jobs that were done last, oldest first."""
    query = (
        "SELECT needs, seconds, cold FROM jobs JOIN workflows ON workflows.id = workflow WHERE state = 'done' ORDER BY"
        " finished DESC LIMIT ?"
    )
    return store.query(query, [_TIMED])[::-1]
