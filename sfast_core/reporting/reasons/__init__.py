"""Why a call runs as it was: kinds of reasons, each with its sentence, its meaning, and advice for each host.

From this table come the report's words, the log's, the badge's and docs/troubleshooting.md's (``python -m
benchmarks.reasons``).
"""

from __future__ import annotations

from ..reason import HOSTS, UNKNOWN, Advice, Kind
from . import calls, graphs, hosts, memory, records

#: All kinds, by their codes.
KINDS: dict[str, Kind] = {
    kind.code: kind
    for kinds in ({"UNKNOWN": UNKNOWN}, *map(vars, (calls, records, graphs, memory, hosts)))
    for kind in kinds.values()
    if isinstance(kind, Kind)
}


def table() -> list[str]:
    """The documents' tables: all kinds, what is of none last, and what can be done where that depends on the host."""
    by_host = dict.fromkeys(kind.do for kind in KINDS.values() if isinstance(kind.do, Advice))
    kinds = sorted(KINDS.values(), key=lambda kind: not kind.code)
    head, second = "| the reason | what it is | what to do |", f"| what to do | {' | '.join(HOSTS.values())} |"
    return [
        head,
        "|---|---|---|",
        *(kind.row() for kind in kinds),
        "",
        second,
        "|---|---|---|---|",
        *(advice.row() for advice in by_host),
    ]
