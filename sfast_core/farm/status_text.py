"""A head's status, to read."""

from __future__ import annotations

from typing import Any

_LOG_LINES = 6


def lines(status: dict[str, Any]) -> list[tuple[str, str]]:
    """Lines with their styles, from what :meth:`.client.Client.status` gives."""
    jobs = status["jobs"]
    states = {"done": "done", "running": "running", "waiting": "waiting", "aside": "set aside"}
    found = [(f"jobs: {', '.join(f'{jobs[state]} {words}' for state, words in states.items())}", "bold")]
    found.append((f"jobs done in the last minute: {status['per_minute']:g}", ""))
    if status.get("held"):
        found.append((status["held"], "yellow"))
    if status.get("stopping"):
        found.append((f"the farm ends {status['stopping']}", "yellow"))
    workers = status["workers"]
    found.append((f"workers: {len(workers)}, {sum(worker['state'] == 'busy' for worker in workers)} busy", "bold"))
    found += [(_worker(worker), "" if worker["state"] != "starting" else "yellow") for worker in workers]
    found += [
        (f"  no worker on {_short(trouble['machine'])}: {trouble['reason']}", "bold red")
        for trouble in status["troubles"]
    ]
    found += [(f"  {delayed['n']} wait again: {delayed['reason']}", "yellow") for delayed in status["delayed"]]
    for aside in status["aside"]:
        found.append((f"set aside: {aside['name']}: {aside['reason']}", "bold red"))
        found += [(f"    {line}", "") for line in (aside["log"] or "").splitlines()[-_LOG_LINES:]]
    found.append((f"results: {status['output']}", ""))
    found.append((f"Ray's dashboard: {status['dashboard'] or 'not there; pip install ray[default]'}", ""))
    return found


def _worker(worker: dict[str, Any]) -> str:
    told = [
        f"  {worker['name']} on {_short(worker['machine'])}: {worker['state']}",
        f"{worker['done']} done",
        f"busy {worker['busy']:.0%} of its time",
    ]
    if "gpu_percent" in worker:
        told.append(
            f"GPU {worker['gpu_percent']:.0f} %, {worker['memory_mb'] / 1024:.1f} of"
            f" {worker['memory_total_mb'] / 1024:.1f} GiB"
        )
    if worker["job"]:
        told.append(worker["job"])
    return ", ".join(told)


def _short(machine: str) -> str:
    return machine[:8]
