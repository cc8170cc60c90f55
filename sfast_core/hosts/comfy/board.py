"""What a page is told that asks: what a queue would do with each node of its workflow, and what benchmarks have
measured.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch

from ...config import CompileConfig
from ...reporting.reason import COMFY
from ...reporting.reasons.calls import NO_GPU
from ...reporting.report import Report, read_while_counting
from ...reporting.translated import said
from .events import MEASURED, STATUSES, Status, running_prompt, server, status_of_this_node
from .lookup import graph_bytes_by_model
from .prompts import Prompt, done

_MOST = 256
# how many times faster a benchmark was, by model and shapes
_MEASURED: OrderedDict[tuple[str, str], float] = OrderedDict()
_BENCHMARKS: OrderedDict[Status, dict[str, Any]] = OrderedDict()  # what those nodes show


def measured(model: str, inputs: str | None, times: float) -> None:
    """Tell what the benchmark node that is being executed has measured: the model's name and shapes, and how many times
    faster it was.
    """
    if inputs is not None:
        _MEASURED[model, inputs] = times
    status = status_of_this_node()
    if status is not None:
        _BENCHMARKS[status] = data = {
            "state": MEASURED,
            "model": model,
            "inputs": inputs,
            "times": times,
            "graph_bytes": 0,
        }
        status.say(data)
    for table in (_MEASURED, _BENCHMARKS):
        while len(table) > _MOST:
            table.popitem(last=False)


def machine() -> dict[str, Any] | None:
    """Why nothing is faster on this machine, and what can be done: ``why``, ``advice``, and both in other languages,
    ``said``; None where it can be.
    """
    try:
        from comfy.model_management import get_torch_device

        device = get_torch_device()
    except Exception:  # another version's
        return None
    if device.type == "cuda" and not getattr(torch.version, "hip", None) or CompileConfig().cpu_allowed():
        return None
    why = NO_GPU(device=device) if device.type != "cuda" else NO_GPU(device="an AMD GPU")
    return {"why": why, "advice": why.advice(COMFY), "said": said(why, why.advice(COMFY))}


def with_measured(report: Report) -> Report:
    """``report``, with what benchmarks have measured put into its modules."""
    for module in report.modules:
        module.times = {inputs: times for (model, inputs), times in _MEASURED.items() if model == module.name}
    return report


def board(workflow: str | None) -> dict[str, Any]:
    """The last event of each node of a workflow, ``graphs`` by model, ``times`` by model and shapes, and what
    :func:`machine` gives.

    ``idle`` in an event: the last queue of this workflow had the node, and no model was run through it: what it would
    have made was kept, or another node ran the model.

    Args:
        workflow: its id, as the editor sends it with a prompt.
    """
    found = server()
    latest = None if found is None else next((prompt for prompt in done(found) if prompt.workflow == workflow), None)
    events = read_while_counting(
        lambda: [event for status in list(STATUSES) for event in _events(status, workflow, latest, running_prompt())]
    )
    return {
        "events": events,
        "graphs": read_while_counting(graph_bytes_by_model),
        "times": [
            {"model": model, "inputs": inputs, "times": times} for (model, inputs), times in list(_MEASURED.items())
        ],
        "machine": machine(),
    }


def _events(status: Status, workflow: str | None, latest: Prompt | None, now: Prompt | None) -> list[dict[str, Any]]:
    kept = [{**data, "graph_bytes": engine.report.graph_bytes} for engine, data in list(status.last.items())]
    if status in _BENCHMARKS:
        kept = [{**status.place, **_BENCHMARKS[status]}]
    events = []
    for data in kept:
        idle = latest is not None and data["prompt"] != latest.id and (now is None or data["prompt"] != now.id)
        if idle and latest is not None and (there := status.place_in(latest))["nodes"][0] in latest.nodes:
            events.append({**data, "nodes": there["nodes"], "workflow": workflow, "idle": True})
        elif data["workflow"] == workflow:
            events.append(data)
    return events
