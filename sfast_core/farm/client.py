"""Talks to a farm's head."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from .errors import FarmError


class Client:
    """The head at ``address`` (``host:port``), with its token. Every method raises :class:`FarmError` when it fails."""

    def __init__(self, address: str, token: str) -> None:
        self.address = address
        self._token = token
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open

    def submit(
        self, name: str, workflow: dict[str, Any], seeds: str | None, out: str, editor: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Queue a workflow. Returns the fields of :class:`.store.Submitted`, with the submission's number.

        ``editor``: the workflow in the editor's form.
        """
        return self._ask("/submit", {"name": name, "workflow": workflow, "seeds": seeds, "out": out, "editor": editor})

    def status(self, batch: int | None = None) -> dict[str, Any]:
        """As :meth:`.head.Head.status`, with the addresses of Ray's dashboard and the results."""
        return self._ask("/status" if batch is None else f"/status?batch={batch}")

    def stop(self, now: bool) -> None:
        """End the farm; with ``now``, without waiting for running jobs."""
        self._ask("/stop", {"now": now})

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._token}"}
        request = urllib.request.Request(f"http://{self.address}{path}", data, headers)
        try:
            with self._open(request, timeout=120) as answer:
                found: dict[str, Any] = json.loads(answer.read())
                return found
        except urllib.error.HTTPError as error:
            try:
                reason = json.loads(error.read())["error"]
            except (ValueError, KeyError, OSError):
                reason = str(error)
            raise FarmError(str(reason)) from None
        except (OSError, ValueError) as error:
            raise FarmError(f"the farm at {self.address} doesn't answer: {getattr(error, 'reason', error)}") from None
