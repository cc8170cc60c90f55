"""Counts what becomes of one module's calls, logs it once, and tells a host before something takes long."""

from __future__ import annotations

import logging
from collections.abc import Callable

from .reason import told
from .reasons.memory import OUT_OF_MEMORY
from .report import ModuleReport
from .signature_report import SignatureReport

log = logging.getLogger("fast_compile")


class Reporter:
    """Writes one module's report, its lines in the log, and its host's events.

    Attributes:
        report: the module's.
        observer: is told ``"tracing"`` and ``"capturing"`` before these begin, and of tracing how much is done, from 0
            to 1. It is called from several threads and must not raise.
        reasons_level: the log level of reasons why a call runs as it was. A host whose log hides information sets a
            higher one.
        may_say: is asked before a line is logged that isn't a warning. Where it says no, the line is logged the next
            time that it comes up.
    """

    def __init__(self, report: ModuleReport) -> None:
        self.report = report
        self.observer: Callable[[str, float], None] | None = None
        self.may_say: Callable[[], bool] = lambda: True
        self.reasons_level = logging.INFO
        self._said: set[str] = set()
        self._is_ready = False

    def announce(self, what: str, done: float = 0.0) -> None:
        """Tell the observer what is about to be done, or how much of it is."""
        if self.observer is not None:
            self.observer(what, done)

    def ready(self, signature: SignatureReport) -> None:
        """Log how long it took to make a signature fast; for all but the module's first one, at the debug level."""
        steps = [
            ("traced", signature.trace_s),
            ("fused", signature.rewrite_s),
            *([("captured", signature.capture_s)] if signature.captures else []),
        ]
        words = ", ".join(f"{name} in {seconds:.1f} s" for name, seconds in steps)
        log.log(
            logging.DEBUG if self._is_ready else logging.INFO,
            "Fast Compile: %s is fast now: %s",
            self.report.name,
            words,
        )
        self._is_ready = True

    def ran_eager(self, reason: str) -> None:
        """Count a call that runs as it was, and say why once."""
        self.report.calls["eager"] += 1
        self.report.reasons[told(reason)] += 1
        self.say(self._runs_as_it_was(reason), self.reasons_level)

    def answered(self, who: str) -> None:
        """Count a call that somebody answered in the module's place, without running it."""
        self.report.answered[who] += 1

    def gave_up(self, reason: str) -> None:
        """Warn that a signature runs as it was for good."""
        self.say(self._runs_as_it_was(reason), logging.WARNING)

    def ran_out_of_memory(self, error: Exception, freed: int) -> None:
        """Warn that a call runs as it was, and that graphs of ``freed`` bytes were released."""
        reason = OUT_OF_MEMORY()
        self._said.add(self._runs_as_it_was(reason))  # this line says it
        words = f"ran out of memory: {freed / 2**20:.0f} MB of graphs were released, and the call runs as it was"
        self.say(f"{words}; {reason.advice(self.report.host)} ({error})", logging.WARNING)

    def say(self, message: str, level: int = logging.INFO) -> None:
        """Log the module's name and ``message`` behind it, unless that was logged before."""
        if message not in self._said and (self.may_say() or level > logging.INFO):
            self._said.add(message)
            log.log(level, "Fast Compile: %s %s", self.report.name, message)

    def _runs_as_it_was(self, reason: str) -> str:
        return (
            f"runs as it was, unaccelerated, because {reason}. What you can do:"
            f" {told(reason).advice(self.report.host)}."
        )
