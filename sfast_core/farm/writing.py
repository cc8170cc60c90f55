"""Writes results to disk in threads of their own, so that a slow disk keeps no GPU waiting."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from . import results
from .store import Task

FULL = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC), errno.EIO}  #: what passes, or concerns every job
_THREADS = 4

File = tuple[str, int, str, bytes]  #: node, its number among the node's files, suffix, bytes


@dataclass
class Written:
    """A result that was written, or with an ``error`` couldn't be."""

    task: Task
    files: Sequence[File]
    names: list[str]
    seconds: float
    cold: bool
    error: OSError | None = None


class Writing:
    """Writes results of jobs into their folders."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="farm-writing")
        self._running: list[Future[Written]] = []

    def begin(self, task: Task, files: Sequence[File], seconds: float, cold: bool) -> None:
        """Begin to write a result."""
        self._running.append(self._pool.submit(_write, task, files, seconds, cold))

    def ended(self) -> list[Written]:
        """The results that have been written, or failed to be, since the last call."""
        tried, self._running = self._running, []
        done: list[Future[Written]] = []
        for future in tried:  # each is asked once: it may end meanwhile
            (done if future.done() else self._running).append(future)
        return [future.result() for future in done]

    def __len__(self) -> int:
        return len(self._running)

    def close(self) -> None:
        """Wait until everything is written."""
        self._pool.shutdown()


def _write(task: Task, files: Sequence[File], seconds: float, cold: bool) -> Written:
    names: list[str] = []
    try:
        for node, number, suffix, data in files:
            name = results.file_name(task.name, node, number, suffix)
            results.write_whole(task.folder / name, data)
            names.append(name)
    except OSError as error:
        return Written(task, files, names, seconds, cold, error)
    return Written(task, files, names, seconds, cold)
