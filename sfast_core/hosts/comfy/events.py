"""What the editor is told of compiled models while they run: events over the server's websocket, at changes only.

A call's own path is read off the report's counts after it, which takes microseconds; only tracing and capturing, which
take longer than anybody likes to wait without being told, are announced by the engine before they begin.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ...engine import Engine
from ...quality.levels import EXACT
from ...reporting.reason import told
from ...reporting.signature_report import SignatureReport
from ...reporting.translated import LANGUAGES, Say, english, said, speaker
from .prompts import Prompt, running

log = logging.getLogger("fast_compile")
EVENT = "fast_compile.status"
#: replayed, run without a graph, as it was; "tracing" and "capturing" are the engine's
FAST, FUSED, EAGER = "fast", "fused", "eager"
READY, MEASURED = "ready", "measured"  #: nothing is known of it, or not any more; the benchmark's
Send = Callable[[dict[str, Any]], None]


def server() -> Any:
    """ComfyUI's server; None where ComfyUI is a library."""
    return getattr(getattr(sys.modules.get("server"), "PromptServer", None), "instance", None)


def send(data: dict[str, Any]) -> None:
    """Send one event to every page that is open.

    Without a server (ComfyUI as a library) nothing happens; it never raises.
    """
    try:
        found = server()
        if found is not None:
            found.send_sync(EVENT, data)
    except Exception:  # nobody listens, or not any more
        log.debug("Fast Compile: an event couldn't be sent", exc_info=True)


def _executing() -> Any:
    """What is being executed: ``prompt_id`` and ``node_id``; None where nothing is, or this ComfyUI doesn't tell."""
    try:
        from comfy_execution.utils import get_executing_context

        return get_executing_context()
    except Exception:
        return None


def executing_node() -> str | None:
    """The id of the node that is being executed; None where there is none."""
    context = _executing()
    return None if context is None else str(context.node_id)


#: The statuses of all nodes. One is gone with the last object that carries it.
STATUSES: weakref.WeakSet[Status] = weakref.WeakSet()


class LineAPrompt:
    """Tells whether a line may be logged: one for each prompt, and all of them outside of prompts. Thread-safe."""

    def __init__(self) -> None:
        self._last: str | None = None
        self._lock = threading.Lock()

    def __call__(self) -> bool:
        prompt = getattr(_executing(), "prompt_id", None)
        with self._lock:
            if prompt is not None and prompt == self._last:
                return False
            self._last = prompt
            return True


def running_prompt() -> Prompt | None:
    """The prompt that is being executed; None where that can't be said."""
    found = server()
    return None if found is None else running(found, getattr(_executing(), "prompt_id", None))


def status_of_this_node() -> Status | None:
    """A status for the node that is being executed; None where there is none, or no server that could tell of it."""
    node = executing_node() if server() is not None else None
    if node is None:
        return None
    STATUSES.add(status := Status(node))
    return status


@dataclass
class _Run:
    """One engine within one sampling: its report's counts before, and what the badge needs to know of its calls."""

    calls: Counter[str]
    reasons: Counter[str]
    eager: int
    replayed: int
    fused: int
    steps: int
    signatures: dict[SignatureReport, int]  # the calls of each
    answered: Counter[str] = field(default_factory=Counter)
    state: str | None = None
    fell_back: bool = False
    fast_calls: int = 0  # with another fast call just before
    fast_s: float = 0.0
    fast_at: float | None = None  # when the last call ended, if that was a fast one


class Status:
    """What is told of one node: the state of the models that run compiled because of it.

    Attributes:
        last: the last event of each engine that lives.
        place: the fields of the last event that say whom it was about.

    Args:
        node: its id in the prompt that executed it. In later prompts those that mean the same are told of.
        send: takes an event's data: ``nodes`` (their ids), ``workflow`` and ``prompt`` (of the prompt that runs),
            ``state``, ``model``, ``why``, ``code`` (of why), ``advice`` (what the user can do about it), ``said`` (both
            in other languages), ``step``, ``steps``, ``done`` (of tracing, from 0 to 1), ``graph_bytes``, ``quality``
            (where it isn't exact), and at the end of a sampling ``inputs`` (the shapes, where there was one signature),
            ``calls`` by path (``answered``: by somebody in the model's place), ``rate`` in steps per second, and
            ``live``, what of other nodes ran between segments, its share of the time, and the weights that are
            streamed, ``live_said`` the same in other languages. What isn't known is None.

    Another event of this name is sent by nodes: ``graphs``, the bytes of all models' graphs by model.
    """

    def __init__(self, node: str, send: Send = send) -> None:
        self.node = node
        self.last: weakref.WeakKeyDictionary[Engine, dict[str, Any]] = weakref.WeakKeyDictionary()
        prompt = running_prompt()
        self._meaning = None if prompt is None else prompt.meaning(node)
        self.place: dict[str, Any] = self.place_in(prompt)
        self._send = send
        self._runs: weakref.WeakKeyDictionary[Engine, _Run] = weakref.WeakKeyDictionary()
        self._sent: dict[str, Any] | None = None

    def say(self, data: dict[str, Any]) -> None:
        """Send an event about this node."""
        self._send({**self._placed(), **data})

    def __deepcopy__(self, memo: Any) -> Status:
        """Whoever copies a patcher deeply samples for the same node."""
        return self

    def place_in(self, prompt: Prompt | None) -> dict[str, Any]:
        """The fields of an event that say whom it is about, in this prompt."""
        if prompt is None:
            return {"nodes": [self.node], "workflow": None, "prompt": None}
        return {
            "nodes": prompt.meaning_the_same(self.node, self._meaning),
            "workflow": prompt.workflow,
            "prompt": prompt.id,
        }

    def _placed(self) -> dict[str, Any]:
        prompt = running_prompt()
        if prompt is not None and prompt.id != self.place["prompt"]:
            self.place = self.place_in(prompt)
        return self.place

    @contextmanager
    def watching(self, engine: Engine, options: Mapping[str, Any] | None = None) -> Iterator[None]:
        """Tell what becomes of the calls of ``engine`` within the block.

        Args:
            engine: of one module.
            options: the call's transformer options, which say which step it is.
        """
        options = options or {}
        run = self._runs.get(engine) or self._begin(engine, options)

        step: tuple[int | None, int | None] | None = None

        def ahead(what: str, done: float) -> None:
            nonlocal step
            run.state, step = what, step or _step(options)
            self._tell(engine, what, None, *step, done=done)

        engine.reporter.observer = ahead
        try:
            yield
        finally:
            engine.reporter.observer = None
        self._after(engine, run)

    def end(self, interrupted: bool = False, always: bool = True) -> None:
        """A sampling is over: sum it up.

        Args:
            interrupted: the user has cancelled it, so that its steps are fewer than were planned.
            always: tell also when nothing has changed but the counts.
        """
        runs = list(self._runs.items())
        self._runs.clear()
        for engine, run in runs:
            calls = Counter(engine.report.calls) - run.calls
            why = _why(engine, run)
            answered = engine.report.answered - run.answered
            if not calls and not answered:  # it was interrupted in its first
                if run.state is not None:
                    self._tell(engine, READY, None)
                    self.last.pop(engine, None)
                continue
            eager = calls["eager"] if set(calls) != {"traced"} else why is not None
            if always:
                self._sent = None
            state = EAGER if 2 * eager > calls.total() else FAST if calls["replayed"] or not calls else FUSED
            rate = None if interrupted else _rate(run, calls.total())
            if answered:
                calls["answered"] = answered.total()
            in_words = partial(_live, engine, run, answered)
            more: dict[str, Any] = {"calls": dict(calls), "rate": rate, "inputs": _inputs(engine, run)}
            more |= {"live": in_words(english), "live_said": {name: in_words(speaker(name)) for name in LANGUAGES}}
            self._tell(engine, state, why, **more)

    def _begin(self, engine: Engine, options: Mapping[str, Any]) -> _Run:
        calls, reasons, sigmas = engine.report.calls, engine.report.reasons, options.get("sample_sigmas")
        steps = max(0, len(sigmas) - 1) if sigmas is not None else 0
        signatures = {signature: signature.calls for signature in engine.report.signatures}
        run = _Run(
            Counter(calls),
            Counter(reasons),
            calls["eager"],
            calls["replayed"],
            calls["fused"],
            steps,
            signatures,
            Counter(engine.report.answered),
        )
        self._runs[engine] = run
        return run

    def _after(self, engine: Engine, run: _Run) -> None:
        calls = engine.report.calls
        eager, replayed, fused = calls["eager"], calls["replayed"], calls["fused"]
        if eager != run.eager:
            run.fast_at = None
            if not run.fell_back:
                run.state, run.fell_back = EAGER, True
                self._tell(engine, EAGER, _why(engine, run))
        elif replayed != run.replayed or fused != run.fused:
            now = time.perf_counter()
            if run.fast_at is not None:
                run.fast_s += now - run.fast_at
                run.fast_calls += 1
            run.fast_at = now
            state = FAST if replayed != run.replayed else FUSED
            # Calls of two sorts may take turns: the badge stays with "fell back", then with "fast", rather than
            # flicker.
            if run.state != state and run.state != FAST and not run.fell_back:
                run.state = state
                self._tell(engine, state, None)
        else:
            run.fast_at = None
        run.eager, run.replayed, run.fused = eager, replayed, fused

    def _tell(
        self,
        engine: Engine,
        state: str,
        why: str | None,
        step: int | None = None,
        steps: int | None = None,
        done: float | None = None,
        **more: Any,
    ) -> None:
        try:
            report = engine.report
            data: dict[str, Any] = {**self._placed(), "state": state, "model": report.name, "why": why}
            data["code"] = told(why).code if why else None
            data["advice"] = advice = told(why).advice(report.host) if why else None
            data["said"] = said(why, advice) if why and advice else None
            data["quality"] = quality if (quality := report.settings.get("quality")) != EXACT else None
            data |= {"step": step, "steps": steps, "done": done, "graph_bytes": report.graph_bytes}
            if data != self._sent:
                self._sent = data
                data = {**data, "inputs": None, "calls": None, "rate": None, "live": None, "live_said": None, **more}
                self.last[engine] = data
                self._send(data)
        except Exception:  # the sampling goes on
            log.debug("Fast Compile: a status couldn't be told", exc_info=True)


def _step(options: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Which step of how many this call belongs to, from 1. It waits for the GPU: not for every call."""
    sigmas, sigma = options.get("sample_sigmas"), options.get("sigmas")
    if sigmas is None or sigma is None or len(sigmas) < 2:
        return None, None
    try:
        distances = [abs(value - float(sigma.flatten()[0])) for value in sigmas.tolist()]
    except Exception:  # it is read for the badge alone
        return None, None
    steps = len(distances) - 1
    return min(distances.index(min(distances)) + 1, steps), steps


def _used(engine: Engine, run: _Run) -> list[SignatureReport]:
    """The signatures of this sampling's calls."""
    return [signature for signature in engine.report.signatures if signature.calls != run.signatures.get(signature, 0)]


def _inputs(engine: Engine, run: _Run) -> str | None:
    """The shapes that the sampling ran with, where they were the same at each call."""
    used = [signature.inputs for signature in _used(engine, run)]
    return used[0] if len(used) == 1 else None


def _live(engine: Engine, run: _Run, answered: Counter[str], say: Say) -> str | None:
    """What ran live in this sampling's calls, what was streamed for them and what wasn't exact, of those that had most;
    and who answered in the model's place.
    """
    used = [
        signature
        for signature in _used(engine, run)
        if signature.live or signature.streamed_bytes or signature.kept_bytes or signature.lossy
    ]
    most = max(used, key=lambda signature: signature.calls, default=None)
    lines = [] if most is None else [*most.lossy_lines(say), *most.live_lines(say), *most.stream_lines(say)]
    lines += [say("{count} calls answered by {who}", count=count, who=who) for who, count in answered.most_common()]
    return "; ".join(line.strip() for line in lines) or None


def _why(engine: Engine, run: _Run) -> str | None:
    """Why most of the sampling's eager calls, or the last trace, came to nothing."""
    since = Counter(engine.report.reasons) - run.reasons
    if since:
        return since.most_common(1)[0][0]
    signatures = engine.report.signatures
    return signatures[-1].eager_because if signatures else None


def _rate(run: _Run, calls: int) -> float | None:
    """Steps per second between calls that ran fast."""
    if not run.fast_calls or not run.steps or calls < run.steps or run.fast_s <= 0:
        return None
    return run.fast_calls / run.fast_s * run.steps / calls
