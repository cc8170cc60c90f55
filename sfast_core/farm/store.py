"""The queue on disk: what was submitted, who has what, what became of it.

SQLite, so that it is whole after a kill or a power failure.

A job is ``waiting``, ``running`` (a worker has a lease on it), ``done`` (its files are written) or ``aside`` (it won't
be tried again until it is submitted anew). Only who holds the lease can end it, so that the late word of a worker that
was taken for dead changes nothing.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import results, workflow
from .errors import FarmError
from .workflow import Needs, Prompt, needs_in

CRASHES = 3  #: of its workers before a job is set aside
_VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS workflows (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL, prompt TEXT NOT NULL, extra TEXT NOT NULL, needs TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS jobs (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, workflow INTEGER NOT NULL REFERENCES workflows(id), seed TEXT,
    name TEXT NOT NULL, folder TEXT NOT NULL, batch INTEGER NOT NULL, submitted REAL NOT NULL, state TEXT NOT NULL,
    not_before REAL NOT NULL DEFAULT 0, failures INTEGER NOT NULL DEFAULT 0, worker TEXT, lease TEXT, until REAL,
    finished REAL, seconds REAL, cold INTEGER, reason TEXT, log TEXT, files TEXT);
CREATE INDEX IF NOT EXISTS jobs_by_state ON jobs(state, finished);
"""
#: Of a job that is queued once more.
_NOTHING_YET = {"failures": 0, "not_before": 0, "reason": None, "log": None, "files": None, "finished": None}


@dataclass(frozen=True)
class Submitted:
    """What became of a submission: how many jobs are new, were queued already, are done and have their files."""

    batch: int
    queued: list[int]
    known: int
    there: int


@dataclass(frozen=True)
class Waiting:
    """A job that nobody has: what choosing one takes."""

    id: int
    needs: Needs
    submitted: float
    not_before: float = 0.0


@dataclass(frozen=True)
class Task:
    """A job that a worker has been given."""

    id: int
    lease: str
    name: str  #: what the names of its files begin with
    folder: Path
    prompt: Prompt
    extra: dict[str, Any]  #: what ComfyUI keeps in a picture besides the prompt, such as the editor's workflow
    needs: Needs


class Store:
    """The queue in the file ``path``. Usable from several threads.

    Every method raises :class:`FarmError` where the file can't be read or written, such as on a full disk: nothing of
    that call is kept then.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()
        self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=10)
        self._connection.row_factory = sqlite3.Row
        with self._words():
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=FULL")  # what was acknowledged is there after a power failure
            (version,) = self._connection.execute("PRAGMA user_version").fetchone()
            if version not in (0, _VERSION):
                raise FarmError(
                    f"the queue {path} is of another version ({version}, here {_VERSION}): finish it with that, or"
                    " start in another --home"
                )
            self._connection.executescript(_SCHEMA + f"PRAGMA user_version={_VERSION};")

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    def submit(
        self,
        name: str,
        prompt: Prompt,
        seeds: Sequence[int | None],
        folder: Path,
        now: float,
        extra: dict[str, Any] | None = None,
    ) -> Submitted:
        """Queue the prompt once for each seed (None: as it is), in one piece.

        A job that is there is not queued again: where it is done and its files are still there, where it waits, where
        it runs. One that was set aside, or whose files are gone, is.
        """
        queued, known, there = [], 0, 0
        own = workflow.own_seed(prompt)
        with self._transaction() as run:
            batch = run("SELECT COALESCE(MAX(batch), 0) + 1 AS batch FROM jobs").fetchone()["batch"]
            stored = None
            for seed, digest in zip(seeds, workflow.digests(prompt, seeds), strict=True):
                job = results.job_name(name, own if seed is None else seed, digest)
                key = f"{digest} {folder}"
                row = run("SELECT id, name, state, files FROM jobs WHERE key = ?", (key,)).fetchone()
                if row is not None and row["state"] in ("waiting", "running"):
                    known += 1
                elif row is not None and row["state"] == "done" and _has_files(folder, row["files"]):
                    there += 1
                else:
                    stored = stored or _insert(
                        run,
                        "workflows",
                        name=name,
                        prompt=json.dumps(prompt),
                        extra=json.dumps(extra or {}),
                        needs=str(workflow.needs(prompt)),
                    )
                    new: dict[str, Any] = {
                        "workflow": stored,
                        "seed": None if seed is None else str(seed),
                        "batch": batch,
                        "submitted": now,
                        "state": "waiting",
                    }
                    if row is None:
                        queued.append(_insert(run, "jobs", key=key, name=job, folder=str(folder), **new))
                    else:
                        anew = new | _NOTHING_YET
                        columns = ", ".join(f"{column} = :{column}" for column in anew)
                        run(f"UPDATE jobs SET {columns} WHERE id = :id", anew | {"id": row["id"]})
                        queued.append(row["id"])
        return Submitted(batch, queued, known, there)

    def waiting(self, ids: Sequence[int] | None = None) -> list[Waiting]:
        """The jobs that wait, oldest first; with ``ids`` those of them that do."""
        query = (
            "SELECT jobs.id, submitted, not_before, needs FROM jobs JOIN workflows ON workflows.id = workflow WHERE"
            " state = 'waiting'"
        )
        with self._words():
            if ids is None:
                rows = self._connection.execute(f"{query} ORDER BY jobs.id").fetchall()
            else:
                found = (self._connection.execute(f"{query} AND jobs.id = ?", (each,)).fetchall() for each in ids)
                rows = [row for each in found for row in each]
        return [Waiting(row["id"], needs_in(row["needs"]), row["submitted"], row["not_before"]) for row in rows]

    def lease(self, job: int, worker: str, until: float) -> Task | None:
        """Give a job that waits to a worker, until the time at which it is taken for stuck. None: it doesn't wait."""
        lease = uuid.uuid4().hex
        with self._transaction() as run:
            taken = run(
                "UPDATE jobs SET state = 'running', worker = ?, lease = ?, until = ? WHERE id = ? AND state ="
                " 'waiting'",
                (worker, lease, until, job),
            )
            if taken.rowcount != 1:
                return None
            query = (
                "SELECT jobs.*, prompt, extra, needs FROM jobs JOIN workflows ON workflows.id = workflow WHERE"
                " jobs.id = ?"
            )
            row = run(query, (job,)).fetchone()
        prompt = workflow.with_seed(json.loads(row["prompt"]), None if row["seed"] is None else int(row["seed"]))
        return Task(
            job, lease, row["name"], Path(row["folder"]), prompt, json.loads(row["extra"]), needs_in(row["needs"])
        )

    def complete(self, lease: str, files: Sequence[str], seconds: float, cold: bool, now: float) -> bool:
        """A job is done and its files are written. False: the lease is no more, and nothing changes."""
        changed = "state = 'done', files = ?, seconds = ?, cold = ?, finished = ?, reason = NULL, log = NULL"
        return self._end(lease, changed, json.dumps(list(files)), seconds, cold, now)

    def give_back(
        self, lease: str, reason: str, now: float, log: str = "", counts: bool = True, pause_s: float = 0.0
    ) -> str | None:
        """A lease ends without a result: the job waits again, for ``pause_s`` at least, or is set aside with its log.

        Args:
            lease: whose job it is.
            reason: in words.
            now: the time.
            log: the end of the worker's.
            counts: whether it may be the job's own doing: after ``CRASHES`` of these it is set aside.
            pause_s: how long it isn't given to anybody.

        Returns:
            The job's new state; None where the lease is no more.
        """
        with self._transaction() as run:
            row = run("SELECT id, failures FROM jobs WHERE lease = ? AND state = 'running'", (lease,)).fetchone()
            if row is None:
                return None
            failures = row["failures"] + counts
            state = "aside" if failures >= CRASHES else "waiting"
            changed = (
                "state = ?, failures = ?, reason = ?, log = ?, not_before = ?, finished = ?, lease = NULL, worker ="
                " NULL"
            )
            values = (state, failures, reason, log, now + pause_s, now if state == "aside" else None, row["id"])
            run(f"UPDATE jobs SET {changed} WHERE id = ?", values)
            return state

    def set_aside(self, lease: str, reason: str, now: float, log: str = "") -> bool:
        """A job that would fail each time is not tried again. False: the lease is no more."""
        return self._end(lease, "state = 'aside', reason = ?, log = ?, finished = ?, worker = NULL", reason, log, now)

    def _end(self, lease: str, changed: str, *values: Any) -> bool:
        with self._transaction() as run:
            query = f"UPDATE jobs SET lease = NULL, {changed} WHERE lease = ? AND state = 'running'"
            return bool(run(query, (*values, lease)).rowcount)

    def reclaim(self) -> int:
        """Take all leases back, since no worker is left that could hold one. How many there were."""
        with self._transaction() as run:
            return run(
                "UPDATE jobs SET state = 'waiting', lease = NULL, worker = NULL WHERE state = 'running'"
            ).rowcount

    def query(self, text: str, values: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """Rows, for what is shown: :mod:`.shown`."""
        with self._words():
            return [dict(row) for row in self._connection.execute(text, tuple(values)).fetchall()]

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        with self._words():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection.execute
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:  # some errors, such as a full disk, have ended it
                    self._connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _words(self) -> Iterator[None]:
        with self._lock:
            try:
                yield
            except sqlite3.Error as error:
                raise FarmError(f"the queue {self.path} can't be read or written: {error}") from error


def _insert(run: Any, table: str, **values: Any) -> int:
    """A new row; its id."""
    number: int = run(
        f"INSERT INTO {table} ({', '.join(values)}) VALUES ({', '.join(f':{column}' for column in values)})", values
    ).lastrowid
    return number


def _has_files(folder: Path, names: str) -> bool:
    """Whether all of a job's files are still there."""
    return all((folder / name).is_file() for name in json.loads(names))
