"""How far a submission is, until it is done: a bar where there is a terminal and ``rich``, else a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ..reporting.terminal import Say

_ASK_S = 1.0
_LINE_S = 15.0  #: between lines that say the same


def follow(
    status: Callable[[], dict[str, Any]], say: Say, pause: Callable[[float], None] = time.sleep
) -> dict[str, Any]:
    """Until nothing of it waits or runs; the last status.

    Args:
        status: asks for the submission's.
        say: where there is no bar.
        pause: between two questions.
    """
    bar, show = _bar(say)
    with bar:
        while True:
            found = status()
            jobs = found["jobs"]
            show(jobs["done"], jobs["aside"], sum(jobs.values()), found["per_minute"])
            if not jobs["waiting"] and not jobs["running"]:
                return found
            pause(_ASK_S)


Show = Callable[[int, int, int, float], None]


def _bar(say: Say) -> tuple[AbstractContextManager[Any], Show]:
    if sys.stdout.isatty():
        try:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
        except ImportError:
            pass
        else:
            bar = Progress(BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
            task = bar.add_task("", total=None)

            def show(done: int, aside: int, total: int, per_minute: float) -> None:
                bar.update(task, completed=done + aside, total=total, description=_words(aside, per_minute))

            return bar, show
    last: dict[str, Any] = {"at": float("-inf"), "done": -1}

    def line(done: int, aside: int, total: int, per_minute: float) -> None:
        now = time.monotonic()
        if done + aside == total or now - last["at"] >= _LINE_S:
            last.update(at=now, done=done)
            say(f"{done + aside} of {total}, {_words(aside, per_minute)}", "")

    return nullcontext(), line


def _words(aside: int, per_minute: float) -> str:
    return f"{per_minute:g} a minute" + (f", {aside} set aside" if aside else "")
