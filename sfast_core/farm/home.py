"""A farm's folder: its queue, its tokens, where its head listens. Only its owner may look into it."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..machine.file_lock import locked
from .errors import FarmError

_LOCK_S = 0.2


class Home:
    """The folder ``path``, which is made."""

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().resolve()
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise FarmError(f"--home {path} can't be made: {error}") from None
        self.queue = self.path / "queue.sqlite"
        self.token = self.path / "token"  #: for submitting
        #: for machines that join: who has it runs what they like on all of them
        self.cluster_token = self.path / "cluster-token"
        self.workers = self.path / "workers"
        self._head = self.path / "head.json"

    @contextmanager
    def held(self) -> Iterator[None]:
        """For one head at a time. Raises :class:`FarmError` where another has it."""
        with locked(self.path / "lock", _LOCK_S) as held:
            if not held:
                raise FarmError(f"a farm is running in {self.path} already; give this one another folder with --home")
            yield

    def tokens(self) -> tuple[str, str]:
        """For submitting and for joining, made the first time."""
        return _secret(self.token), _secret(self.cluster_token)

    def tell(self, **about: Any) -> None:
        """Note where the head is, for the other commands."""
        self._head.write_text(json.dumps(about), "utf-8")

    def told(self) -> dict[str, Any]:
        """What it noted.

        Raises:
            FarmError: no farm was started here.
        """
        try:
            found: dict[str, Any] = json.loads(self._head.read_text("utf-8"))
            return found
        except (OSError, ValueError):
            raise FarmError(
                f"no farm was started in {self.path}: python -m sfast_core.farm start, or name its --home or --address"
            ) from None


def default_home() -> Path:
    """The user's own."""
    try:
        import platformdirs
    except ImportError:
        return Path("~/.fast-compile-farm").expanduser()
    return Path(platformdirs.user_state_dir("fast_compile", appauthor=False)) / "farm"


def read_token(path: Path) -> str:
    """A token from a file. Raises :class:`FarmError` where it isn't there."""
    try:
        return path.read_text("utf-8").strip()
    except OSError as error:
        raise FarmError(f"the token {path} can't be read: {error.strerror}") from None


def _secret(path: Path) -> str:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return read_token(path)
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_hex(32))
    return read_token(path)
