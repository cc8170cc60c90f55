"""The HTTP interface of a farm's head: JSON, for whoever has the token.

``POST /submit``, ``GET /status?batch=N``, ``POST /stop``.
"""

from __future__ import annotations

import hmac
import json
import threading
import urllib.parse
from collections.abc import Callable
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from . import seeds
from .errors import FarmError
from .head import Head

_LARGEST = 64 * 2**20  #: bytes of a request
_PATIENCE_S = 30.0


class Desk:
    """Serves a head over HTTP, in threads, until it is closed.

    Args:
        head: the head.
        token: requests without it aren't answered.
        host: the address to listen on.
        port: the port to listen on; 0: a free one.
        about: further fields of the status.
    """

    def __init__(self, head: Head, token: str, host: str, port: int, about: dict[str, Any]) -> None:
        handler = type("Handler", (_Handler,), {"head": head, "token": token, "about": about})
        try:
            self._server = ThreadingHTTPServer((host, port), handler)
        except OSError as error:
            raise FarmError(f"--listen {host} --port {port}: {error}") from None
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, args=(0.05,), name="farm-desk", daemon=True).start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    head: Head
    token: str
    about: dict[str, Any]
    timeout = _PATIENCE_S

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if path == "/status":
            batch = urllib.parse.parse_qs(query).get("batch", [""])[0]
            self._serve(lambda: {**self.head.status(int(batch) if batch.isdigit() else None), **self.about})
        else:
            self._answer(404, {"error": "no such thing"})

    def do_POST(self) -> None:
        served = {"/submit": self._submit, "/stop": self._stop}.get(self.path)
        if served is None:
            self._answer(404, {"error": "no such thing"})
        else:
            self._serve(served)

    def _submit(self) -> dict[str, Any]:
        body = self._body()
        name, out, named = body.get("name", "workflow"), body.get("out", "."), body.get("seeds")
        if not isinstance(name, str) or not isinstance(out, str) or not isinstance(named, str | None):
            raise FarmError("name, out and seeds have to be text")
        extra = {"extra_pnginfo": {"workflow": body["editor"]}} if isinstance(body.get("editor"), dict) else {}
        submitted = self.head.submit(
            name, body.get("workflow"), None if named is None else seeds.parse(named), out, extra
        )
        return {**asdict(submitted), "queued": len(submitted.queued)}

    def _stop(self) -> dict[str, Any]:
        self.head.stop(bool(self._body().get("now")))
        return {}

    def _serve(self, made: Callable[[], dict[str, Any]]) -> None:
        said = self.headers.get("Authorization", "")
        if not hmac.compare_digest(said.encode(), f"Bearer {self.token}".encode()):
            self._answer(401, {"error": "the farm's token is needed: --token-file"})
            return
        try:
            self._answer(200, made())
        except FarmError as error:
            self._answer(400, {"error": str(error)})

    def _body(self) -> dict[str, Any]:
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > _LARGEST:
            raise FarmError(f"a request has a length of at most {_LARGEST} bytes")
        try:
            found = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError) as error:
            raise FarmError(f"no JSON: {error}") from None
        if not isinstance(found, dict):
            raise FarmError("a JSON object is needed")
        return found

    def _answer(self, code: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        self.close_connection = True

    def log_message(self, format: str, *values: Any) -> None:
        """Log nothing: the head itself says what an operator wants to know."""
