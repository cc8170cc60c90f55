"""Whom an event is about, and what a page is told that asks.

Without ComfyUI: its queue is as much of one as is looked at.
"""

from __future__ import annotations

import sys
import threading
import types
from typing import Any

import pytest
import torch

from sfast_core import CompileConfig, CompiledModule, compile
from sfast_core.hosts.comfy import board, events
from sfast_core.hosts.comfy.prompts import Prompt, done, running

PROMPT: dict[str, Any] = {
    "1": {"class_type": "Loader", "inputs": {"name": "a"}},
    "8": {"class_type": "ApplyFastCompile", "inputs": {"model": ["1", 0], "enabled": True}},
    "5": {"class_type": "KSampler", "inputs": {"model": ["8", 0], "seed": 1}},
}


def renumbered(**numbers: str) -> dict[str, Any]:
    """The same prompt with other numbers of nodes."""
    places = {key: numbers.get(f"n{key}", key) for key in PROMPT}

    def moved(value: Any) -> Any:
        return [places[value[0]], value[1]] if isinstance(value, list) else value

    return {
        places[key]: {**about, "inputs": {name: moved(value) for name, value in about["inputs"].items()}}
        for key, about in PROMPT.items()
    }


class Queue:
    """ComfyUI's."""

    def __init__(self) -> None:
        self.mutex = threading.RLock()
        self.currently_running: dict[int, Any] = {}
        self.history: dict[str, Any] = {}

    def run(self, prompt_id: str, prompt: Any, workflow: str | None = "w") -> None:
        """From now on this one runs; the one before is done."""
        for item in self.currently_running.values():
            self.history[item[1]] = {"prompt": item}
        extra = {} if workflow is None else {"extra_pnginfo": {"workflow": {"id": workflow}}}
        self.currently_running = {0: (0, prompt_id, prompt, extra, [])} if prompt_id else {}


class Server:
    """ComfyUI's, with all that it has sent."""

    def __init__(self) -> None:
        self.prompt_queue = Queue()
        self.sent: list[dict[str, Any]] = []

    def send_sync(self, event: str, data: dict[str, Any]) -> None:
        """To all pages."""
        self.sent.append(data)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    """A server whose prompt executes node 8."""
    found = Server()
    monkeypatch.setitem(
        sys.modules, "server", types.SimpleNamespace(PromptServer=types.SimpleNamespace(instance=found))
    )
    monkeypatch.setattr(events, "_executing", lambda: types.SimpleNamespace(node_id="8", prompt_id=None))
    monkeypatch.setattr(board, "_BENCHMARKS", type(board._BENCHMARKS)())
    monkeypatch.setattr(board, "_MEASURED", type(board._MEASURED)())
    return found


def compiled() -> CompiledModule:
    """A small one that a CPU may trace."""
    return compile(torch.nn.Linear(4, 4).requires_grad_(False), CompileConfig(allow_cpu=True, measure=False))


def sample(status: events.Status, handle: CompiledModule) -> None:
    """Two steps."""
    with torch.no_grad():
        for _ in range(2):
            with status.watching(handle.engine):
                handle(torch.ones(1, 4))
    status.end()


@pytest.mark.parametrize(
    ("prompt", "nodes"),
    [
        (PROMPT, ["8"]),
        (renumbered(n8="17"), ["17"]),
        (renumbered(n8="30:8", n1="30:1"), ["30:8"]),
        (
            {
                **renumbered(n8="17"),
                "8": {"class_type": "ApplyFastCompile", "inputs": {"model": ["1", 0], "enabled": False}},
            },
            ["17"],
        ),
        ({**PROMPT, "17": PROMPT["8"]}, ["8", "17"]),
        ({"1": PROMPT["1"]}, ["8"]),
    ],
    ids=["the same", "pasted", "in a subgraph", "its number is another's", "twice", "of a node that makes nodes"],
)
def test_the_nodes_that_mean_the_same(prompt: Any, nodes: list[str]) -> None:
    """By class and all that goes in, whatever their numbers are."""
    meaning = Prompt("0", PROMPT, "w").meaning("8")
    assert meaning is not None and Prompt("1", prompt, "w").meaning_the_same("8", meaning) == nodes


def test_a_prompt_that_nobody_understands() -> None:
    """A circle, no inputs, another version's queue."""
    circle = {"1": {"class_type": "A", "inputs": {"x": ["1", 0]}}}
    assert (
        Prompt("0", circle, None).meaning("1") is None
        and Prompt("0", {"1": {"class_type": "A"}}, None).meaning("1") is None
    )
    assert running(object(), None) is None and list(done(object())) == []


def test_a_prompt_with_many_ways_is_read_once_a_node() -> None:
    prompt = {
        str(n): {"class_type": "A", "inputs": {"x": [str(n - 1), 0], "y": [str(n - 1), 1]} if n else {}}
        for n in range(100)
    }
    assert Prompt("0", prompt, None).meaning("99")


def test_what_is_told_after_the_node_was_copied_and_deleted(server: Server) -> None:
    """ComfyUI keeps what the first one gave: the one that stands there now is told of, in the workflow that runs."""
    server.prompt_queue.run("p1", PROMPT)
    status, handle = events.status_of_this_node(), compiled()
    assert status is not None
    sample(status, handle)
    assert {(*data["nodes"], data["workflow"], data["prompt"]) for data in server.sent} == {("8", "w", "p1")}
    server.sent.clear()
    server.prompt_queue.run("p2", renumbered(n8="17"), "v")
    sample(status, handle)
    assert server.sent and {(*data["nodes"], data["workflow"], data["prompt"]) for data in server.sent} == {
        ("17", "v", "p2")
    }


def test_a_page_that_asks(server: Server) -> None:
    """What was told last, of this workflow alone; not used, where the last queue had the node and ran no model through
    it; nothing of what is gone.
    """
    server.prompt_queue.run("p1", PROMPT)
    status, handle = events.status_of_this_node(), compiled()
    assert status is not None
    sample(status, handle)
    assert [event["state"] for event in board.board("w")["events"]] == ["fused"] and board.board("v")["events"] == []
    server.prompt_queue.run("p2", PROMPT)
    assert not any(event.get("idle") for event in board.board("w")["events"]), "it may still come"
    server.prompt_queue.run("", None)
    assert [(event["nodes"], event["idle"]) for event in board.board("w")["events"]] == [(["8"], True)]
    server.prompt_queue.run("p3", {"1": PROMPT["1"]})
    server.prompt_queue.run("", None)
    assert not any(event.get("idle") for event in board.board("w")["events"]), "the last queue hadn't the node"
    handle.uninstall()
    del handle
    assert board.board("w")["events"] == []


def test_an_interrupted_first_step(server: Server) -> None:
    """A queue would begin anew."""
    server.prompt_queue.run("p1", PROMPT)
    status, handle = events.status_of_this_node(), compiled()
    assert status is not None
    with pytest.raises(KeyboardInterrupt), torch.no_grad(), status.watching(handle.engine):
        handle.engine.reporter.announce("tracing")
        raise KeyboardInterrupt
    status.end(interrupted=True)
    assert [data["state"] for data in server.sent] == ["tracing", "ready"] and board.board("w")["events"] == []


def test_what_a_benchmark_measured(server: Server) -> None:
    """Its own badge, that of the model with these shapes, and the report say one figure."""
    server.prompt_queue.run("p1", PROMPT)
    board.measured("SD15", "float16[2, 4, 64, 64]", 2.5)
    told = board.board("w")
    assert (
        [(event["state"], event["times"]) for event in told["events"]]
        == [("measured", 2.5)]
        == [(data["state"], data["times"]) for data in server.sent]
    )
    assert told["times"] == [{"model": "SD15", "inputs": "float16[2, 4, 64, 64]", "times": 2.5}]
