"""What the editor is told: at changes only, with nobody listening, and never at the sampling's expense.

Without ComfyUI.
"""

from __future__ import annotations

import copy
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from sfast_core import CompileConfig, CompiledModule, compile
from sfast_core.hosts.comfy import events
from sfast_core.hosts.comfy.events import EAGER, FAST, FUSED, Status
from sfast_core.machine.choices import Choices
from sfast_core.runtime.graphs import DeviceGraphs
from tests.fakes import FakeBackend
from tests.models import UNet

SIGMAS = torch.tensor([14.0, 7.0, 3.0, 1.0, 0.0])


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> DeviceGraphs:
    """The CPU as a device that captures."""
    found = DeviceGraphs(FakeBackend())
    monkeypatch.setattr("sfast_core.engine.device_graphs", lambda device: found)
    return found


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is measured or kept on disk."""
    monkeypatch.setattr("sfast_core.lowering._choices", lambda target: Choices(None))
    with torch.no_grad():
        yield


def compiled(**config: Any) -> CompiledModule:
    torch.manual_seed(0)
    return compile(UNet(), CompileConfig(allow_cpu=True, **config))


def sampled(status: Status, handle: CompiledModule, steps: int = 4, call: Callable[[], Any] | None = None) -> None:
    """As a sampler calls a model."""
    for step in range(steps):
        with status.watching(handle.engine, {"sample_sigmas": SIGMAS, "sigmas": SIGMAS[step : step + 1]}):
            (call or (lambda: handle(*UNet.inputs())))()
    status.end()


def states(found: list[dict[str, Any]]) -> list[tuple[str, int | None]]:
    return [(event["state"], event["step"]) for event in found]


def test_a_sampling(graphs: DeviceGraphs) -> None:
    """Tracing and capturing are told before they begin, with their step; then one event for all replays, and the sum at
    the end.
    """
    found: list[dict[str, Any]] = []
    status, handle = Status("8", found.append), compiled()
    sampled(status, handle)
    assert states(found) == [("tracing", 1), ("capturing", 2), (FAST, None), (FAST, None)]
    assert {(event["nodes"][0], event["model"], event["why"]) for event in found} == {("8", "UNet", None)}
    assert found[0]["steps"] == 4 and found[0]["graph_bytes"] == 0 and found[-1]["graph_bytes"] == graphs.bytes > 0
    assert (
        found[-1]["calls"] == {"traced": 1, "replayed": 3}
        and found[-1]["rate"] > 0
        and "float32" in found[-1]["inputs"]
    )
    assert handle.engine.reporter.observer is None
    assert found[0]["done"] == 0.0 and found[-1]["done"] is None
    found.clear()
    sampled(status, handle)
    assert states(found) == [(FAST, None)] and found[0]["calls"] == {"replayed": 4}, "nothing changed but the counts"


def test_the_shapes_of_a_sampling(graphs: DeviceGraphs) -> None:
    """Those that it ran with, whatever other sizes the model knows: a benchmark's eager rate is found by them."""
    found: list[dict[str, Any]] = []
    status, handle = Status("8", found.append), compiled()
    told = []
    for size in (8, 16, 8):
        sampled(status, handle, call=lambda size=size: handle(*UNet.inputs(size=size)))  # type: ignore[misc]
        told.append(found[-1]["inputs"])
    assert told[0] == told[2] != told[1] and all(told) and "[2, 4, 16, 16]" in told[1]
    turns = iter([8, 16, 8, 16])
    sampled(status, handle, call=lambda: handle(*UNet.inputs(size=next(turns))))
    assert found[-1]["inputs"] is None, "one rate for two"


def test_without_graphs() -> None:
    """Fused kernel by kernel is a state of its own."""
    found: list[dict[str, Any]] = []
    sampled(Status("8", found.append), compiled(cuda_graphs=False))
    assert states(found) == [("tracing", 1), (FUSED, None), (FUSED, None)]


def test_falling_back() -> None:
    """It is told once a sampling, with the reason, also when other calls run fast in between."""
    found: list[dict[str, Any]] = []
    status, handle = Status("8", found.append), compiled()
    turns = iter([True, False, True, False])

    def call() -> None:
        if next(turns):
            handle.engine.run_eager("a reason", lambda: None)
        else:
            handle(*UNet.inputs())

    sampled(status, handle, call=call)
    assert states(found) == [(EAGER, None), ("tracing", 2), (FUSED, None)], "half of it ran fused in the end"
    assert (
        found[0]["why"] == found[-1]["why"] == "a reason"
        and "report it" in found[0]["advice"]
        and found[-1]["calls"] == {"eager": 2, "traced": 1, "fused": 1}
    )


def test_an_interrupted_sampling_has_no_rate() -> None:
    """Its steps are fewer than were planned."""
    found: list[dict[str, Any]] = []
    status, handle = Status("8", found.append), compiled()
    for step in range(3):
        with status.watching(handle.engine, {"sample_sigmas": SIGMAS, "sigmas": SIGMAS[step : step + 1]}):
            handle(*UNet.inputs())
    with pytest.raises(KeyboardInterrupt), status.watching(handle.engine):
        raise KeyboardInterrupt
    assert handle.engine.reporter.observer is None
    status.end(interrupted=True)
    assert found[-1]["rate"] is None and found[-1]["calls"] == {"traced": 1, "fused": 2}


def test_a_part_that_is_called_at_each_step(graphs: DeviceGraphs) -> None:
    """A ControlNet's sampling ends with each call: told is what changed."""
    found: list[dict[str, Any]] = []
    status, handle = Status("8", found.append), compiled()
    for _ in range(6):
        with status.watching(handle.engine):
            handle(*UNet.inputs())
        status.end(always=False)
    assert [event["state"] for event in found] == ["tracing", FUSED, "capturing", FAST]


def test_a_listener_that_fails() -> None:
    """The sampling goes on."""

    def fail(_: Any) -> None:
        raise OSError("gone")

    handle = compiled()
    sampled(Status("8", fail), handle)
    assert handle.engine.report.calls == {"traced": 1, "fused": 3}


@pytest.mark.parametrize(
    "options",
    [{}, {"sample_sigmas": None}, {"sample_sigmas": SIGMAS}, {"sample_sigmas": SIGMAS[:1], "sigmas": SIGMAS[:1]}],
)
def test_options_that_say_no_step(options: dict[str, Any]) -> None:
    """Other samplers, and calls by hand."""
    found: list[dict[str, Any]] = []
    status, handle = Status("8", found.append), compiled()
    with status.watching(handle.engine, options):
        handle(*UNet.inputs())
    status.end()
    assert states(found) == [("tracing", None), (FUSED, None)] and found[-1]["rate"] is None


class Server:
    """What PromptServer.instance does with an event."""

    client_id = "somebody"

    def __init__(self) -> None:
        self.sent: list[tuple[Any, ...]] = []

    def send_sync(self, *message: Any) -> None:
        self.sent.append(message)


def test_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes to all pages; without a server, or where that fails, nothing happens."""
    monkeypatch.delitem(sys.modules, "server", raising=False)
    events.send({"node": "8"})
    assert events.status_of_this_node() is None
    server = Server()
    module = types.SimpleNamespace(PromptServer=types.SimpleNamespace(instance=server))
    monkeypatch.setitem(sys.modules, "server", module)
    events.send({"node": "8"})
    assert server.sent == [(events.EVENT, {"node": "8"})]
    module.PromptServer.instance = types.SimpleNamespace()
    events.send({"node": "8"})


def test_one_line_a_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside prompts there is no limit."""
    context = types.SimpleNamespace(prompt_id="1", node_id="8")
    monkeypatch.setattr(events, "_executing", lambda: context)
    may_say = events.LineAPrompt()
    assert [may_say(), may_say()] == [True, False]
    context.prompt_id = "2"
    assert [may_say(), may_say()] == [True, False]
    context = None  # type: ignore[assignment]
    assert [may_say(), may_say()] == [True, True]


@pytest.mark.parametrize("context, node", [(types.SimpleNamespace(node_id=8), "8"), (None, None)])
def test_the_node_that_is_executed(monkeypatch: pytest.MonkeyPatch, context: Any, node: str | None) -> None:
    """Its id is the prompt's, and a copy of a patcher tells the same node."""
    monkeypatch.setitem(
        sys.modules, "server", types.SimpleNamespace(PromptServer=types.SimpleNamespace(instance=Server()))
    )
    utils = types.ModuleType("comfy_execution.utils")
    utils.get_executing_context = lambda: context  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "comfy_execution", types.ModuleType("comfy_execution"))
    monkeypatch.setitem(sys.modules, "comfy_execution.utils", utils)
    status = events.status_of_this_node()
    assert (status and status.node) == node and (status is None or copy.deepcopy(status) is status)


def test_calls_that_somebody_answered_are_told(graphs: DeviceGraphs) -> None:
    """As a cache does at some steps: the model isn't called then."""
    found: list[dict[str, Any]] = []
    status, handle = Status("8", found.append), compiled()
    turns = iter(range(100))

    def call() -> None:
        if next(turns) % 2:
            handle.engine.reporter.answered("TheirCache")
        else:
            handle(*UNet.inputs())

    sampled(status, handle, call=call)
    assert (
        found[-1]["calls"] == {"traced": 1, "replayed": 1, "answered": 2}
        and found[-1]["live"] == "2 calls answered by TheirCache"
    )
    sampled(status, handle, call=lambda: handle.engine.reporter.answered("TheirCache"))
    assert found[-1]["calls"] == {"answered": 4} and found[-1]["state"] == FAST
