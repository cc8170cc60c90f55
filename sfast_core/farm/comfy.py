"""One headless ComfyUI in a process of its own: started, spoken to by its HTTP API, ended.

It keeps its models between jobs.

This file travels to the machines of a farm as it is, so it needs the standard library alone, and what it gives back is
plain data.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_LOG_END = 4000  #: characters of the log that are kept with a failed job
_POLL_S = (0.02, 0.5)  #: how often it is asked whether a job is done: first, and in the end
_CACHED_TRIES = 3
_FORGETS_S = 1.5  #: after how long ComfyUI has forgotten what it was told to: its queue's thread looks once a second
_NO_ANSWER = (OSError, ValueError, http.client.HTTPException)  #: a process that ends may answer in part


class Refused(Exception):
    """ComfyUI doesn't take the workflow: it would fail each time."""


class Failed(Exception):
    """A node failed."""


class Ended(Exception):
    """ComfyUI is no longer there, or doesn't answer."""


def let_go(process: subprocess.Popen[bytes]) -> None:
    """End a program on a leash, and what it has started; the hard way where it takes longer than 10 seconds."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _lay_out(folder: Path, packs: Mapping[str, str]) -> None:
    """Make what ComfyUI finds in its folder."""
    for name in ("output", "temp", "user", "custom_nodes", "front"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name, pack in packs.items():
        if not (folder / "custom_nodes" / name).exists():
            (folder / "custom_nodes" / name).symlink_to(pack, target_is_directory=True)
    paths = {"farm": {"base_path": str(folder), "custom_nodes": "custom_nodes"}}
    (folder / "paths.yaml").write_text(json.dumps(paths), "utf-8")
    (folder / "front" / "index.html").touch()  # nobody looks at it


def _options(folder: Path, port: int) -> list[str]:
    """Those of ``main.py`` that the farm needs to be as they are."""
    values = {
        "listen": "127.0.0.1",
        "port": port,
        "database-url": "sqlite:///:memory:",
        "front-end-root": folder / "front",
        "preview-method": "none",
        "output-directory": folder / "output",
        "temp-directory": folder / "temp",
        "user-directory": folder / "user",
    }
    return ["--disable-auto-launch", *(word for name, value in values.items() for word in (f"--{name}", str(value)))]


class Comfy:
    """ComfyUI over a folder of its own for what it writes; models, nodes and inputs are those of its installation.

    Args:
        command: ``[python, leash.py, main.py]``.
        folder: for output, temporary files, settings and the log. What lies in its ``custom_nodes`` is loaded.
        options: of ``main.py``, before ours, which therefore hold.
        packs: node packs that it loads besides the installed ones, by name.
        environment: variables besides this process's.
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        options: Sequence[str] = (),
        packs: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        _lay_out(folder, packs or {})
        self._log = folder / "comfyui.log"
        port = free_port()
        self._url = f"http://127.0.0.1:{port}"
        paths = ["--extra-model-paths-config", str(folder / "paths.yaml")]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *paths, *options, *_options(folder, port)],
                cwd=Path(command[-1]).parent,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.PIPE,  # the leash's other end
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=os.name != "nt",
            )
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def is_alive(self) -> bool:
        """Whether the process is there."""
        return self._process.poll() is None

    def log_end(self) -> str:
        """The end of what it has printed."""
        try:
            return self._log.read_bytes()[-_LOG_END:].decode("utf-8", "replace")
        except OSError as error:
            return f"{self._log} can't be read: {error}"

    def wait(self, limit_s: float) -> dict[str, Any]:
        """Until it answers; what it says of its machine. Raises :class:`Ended`."""
        end = time.monotonic() + limit_s
        while True:
            try:
                found: dict[str, Any] = self._ask("/system_stats")
                return found
            except _NO_ANSWER:
                if not self.is_alive():
                    raise Ended(f"ComfyUI didn't start: it ended with {self._process.returncode}") from None
                if time.monotonic() > end:
                    raise Ended(f"ComfyUI didn't start within {limit_s:.0f} s") from None
            time.sleep(0.2)

    def run(self, prompt: dict[str, Any], extra: dict[str, Any], limit_s: float) -> list[tuple[str, int, str, bytes]]:
        """Run a prompt; the node, number, suffix and bytes of each file that it saved.

        Raises:
            Refused: it isn't taken, or saves nothing.
            Failed: a node failed, or it took too long.
            Ended: ComfyUI ended.
        """
        end = time.monotonic() + limit_s
        for _ in range(_CACHED_TRIES):
            outputs = self._outputs(prompt, extra, end)
            files = [
                (node, number, Path(self.folder, "output", item.get("subfolder", ""), item["filename"]))
                for node, shown in outputs.items()
                for number, item in enumerate(
                    each for kind in shown.values() if isinstance(kind, list) for each in kind if _is_saved(each)
                )
            ]
            if not files:
                raise Refused("the workflow saves nothing: a farm keeps what nodes such as Save Image write")
            try:
                found = [(node, number, path.suffix, self._taken(path)) for node, number, path in files]
            except FileNotFoundError:
                # ComfyUI remembers that it saved this before, and doesn't again, but that result was taken away.
                self._ask("/free", {"free_memory": True, "unload_models": False})
                time.sleep(_FORGETS_S)
                continue
            for _, _, path in files:
                path.unlink(missing_ok=True)
            return found
        raise Failed("ComfyUI says that it saved files, which aren't there")

    def stop(self) -> None:
        """End it, and what it has started."""
        let_go(self._process)

    def _outputs(self, prompt: dict[str, Any], extra: dict[str, Any], end: float) -> dict[str, Any]:
        try:
            identity = self._ask("/prompt", {"prompt": prompt, "extra_data": extra})["prompt_id"]
            pause = _POLL_S[0]
            while not (history := self._ask(f"/history/{identity}")):
                if time.monotonic() > end:
                    self._ask("/interrupt", {})
                    raise Failed("the job took longer than the farm's limit")
                time.sleep(pause)
                pause = min(pause * 1.2, _POLL_S[1])
            self._ask("/history", {"delete": [identity]})
        except urllib.error.HTTPError as error:
            raise Refused(_refusal(error)) from None
        except _NO_ANSWER as error:
            try:
                self._process.wait(5)  # it may be ending
            except subprocess.TimeoutExpired:
                raise Ended(f"ComfyUI doesn't answer: {error}") from None
            raise Ended(f"ComfyUI ended with {self._process.returncode}") from None
        entry = history[identity]
        if entry["status"]["status_str"] != "success":
            raise Failed(_failure(entry["status"]["messages"]))
        outputs: dict[str, Any] = entry["outputs"]
        return outputs

    def _taken(self, path: Path) -> bytes:
        """A file's bytes. Nodes say where it is: only what is in the output folder is taken."""
        if not path.resolve().is_relative_to((self.folder / "output").resolve()):
            raise Refused(f"a node says that it saved {path}, which is outside of its output folder")
        return path.read_bytes()

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, {"Content-Type": "application/json"})
        with self._open(request, timeout=60) as answer:
            text = answer.read()
        return json.loads(text) if text else None


def _is_saved(item: object) -> bool:
    return isinstance(item, dict) and isinstance(item.get("filename"), str) and item.get("type") == "output"


def _refusal(error: urllib.error.HTTPError) -> str:
    """What ComfyUI has against a prompt, in its own words."""
    try:
        said = json.loads(error.read())
        found = [said["error"]["message"] + (f": {said['error']['details']}" if said["error"].get("details") else "")]
        for node, errors in (said.get("node_errors") or {}).items():
            found += [
                f"node {node} ({errors.get('class_type')}): {each.get('message')}: {each.get('details')}"
                for each in errors.get("errors", ())
            ]
        return f"ComfyUI refuses the workflow: {'; '.join(found)}"
    except (ValueError, KeyError, TypeError, AttributeError, OSError):
        return f"ComfyUI refuses the workflow: {error}"


def _failure(messages: Sequence[Sequence[Any]]) -> str:
    for kind, data in messages:
        if kind == "execution_error":
            return (
                f"node {data.get('node_id')} ({data.get('node_type')}) failed: {data.get('exception_type')}:"
                f" {data.get('exception_message')}".strip()
            )
    return "ComfyUI says that it failed, and not why"
