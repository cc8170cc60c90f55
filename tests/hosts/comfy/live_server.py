"""ComfyUI's own server in a process on loopback, and what a client says to it. The standard library is enough."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sfast_core.farm.comfy import free_port


class Rejected(Exception):
    """The server refused a prompt. ``answer`` is its JSON: ``error``, and ``node_errors`` by node id."""

    def __init__(self, answer: dict[str, Any]) -> None:
        super().__init__(json.dumps(answer)[:2000])
        self.answer = answer


class Failed(Exception):
    """A prompt was executed and failed."""


class LiveServer:
    """ComfyUI's ``main.py`` over a base folder of its own, which gets this pack as a link and keeps the log.

    Args:
        base: the folder.
        comfyui: where ``main.py`` is.
        python: that runs it.
        packs: of nodes, by the name of their link.
        front_end: whether to serve ComfyUI's.
        environment: variables to set, besides this process's.
        device: options of ``main.py`` for what it computes on; only with ``--cpu`` among them is this pack told to
            compile for the CPU.
    """

    def __init__(
        self,
        base: Path,
        comfyui: Path,
        python: str,
        packs: Mapping[str, Path],
        front_end: bool = False,
        environment: Mapping[str, str] | None = None,
        device: str = "--cpu",
    ) -> None:
        self.base = base
        for folder in ("models/checkpoints", "custom_nodes", "input", "output", "temp", "user", "front"):
            (base / folder).mkdir(parents=True, exist_ok=True)
        (base / "front" / "index.html").touch()  # what is served without a front end
        for name, pack in packs.items():
            (base / "custom_nodes" / name).symlink_to(pack, target_is_directory=True)
        self.log = base / "server.log"
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        options = (
            f"{device} --listen 127.0.0.1 --port {port} --disable-auto-launch --disable-api-nodes --preview-method none"
        )
        options += f" --base-directory {base} --database-url sqlite:///:memory:"
        options += "" if front_end else f" --front-end-root {base / 'front'}"
        on_cpu = {"FAST_COMPILE_CPU": "1"} if "--cpu" in device.split() else {}
        variables = {**os.environ, **on_cpu, "PYTHONDONTWRITEBYTECODE": "1", **(environment or {})}
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                [python, "main.py", *options.split()], cwd=comfyui, env=variables, stdout=log, stderr=subprocess.STDOUT
            )

    def wait(self, seconds: float = 600) -> None:
        """Until it answers.

        Raises:
            RuntimeError: it ended, or didn't come up in time; the message ends with its log.
        """
        end = time.monotonic() + seconds
        while time.monotonic() < end and self._process.poll() is None:
            try:
                self.get("/system_stats")
                return
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.3)
        self.stop()
        raise RuntimeError(f"ComfyUI's server didn't come up:\n{self.log.read_text()[-3000:]}")

    def get(self, path: str) -> Any:
        """The JSON at ``path``."""
        with urllib.request.urlopen(self.url + path, timeout=60) as answer:
            return json.loads(answer.read())

    def post(self, path: str, body: Any) -> bytes:
        """The answer to a JSON body."""
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            found: bytes = answer.read()
            return found

    def unload(self, seconds: float = 30) -> None:
        """Take all models away, and wait until the report knows of none."""
        self.post("/free", {"unload_models": True, "free_memory": True})
        end = time.monotonic() + seconds
        while self.get("/fast_compile/report")["modules"] and time.monotonic() < end:
            time.sleep(0.2)

    def lines(self) -> list[str]:
        """What this pack has logged so far."""
        return [line for line in self.log.read_text("utf-8", "replace").splitlines() if "Fast Compile" in line]

    def run(self, prompt: dict[str, Any], seconds: float = 300, workflow: dict[str, Any] | None = None) -> list[bytes]:
        """Queue an API-format workflow, wait for it, and fetch its pictures. Raises as :meth:`outputs`."""
        images = [
            image for output in self.outputs(prompt, seconds, workflow).values() for image in output.get("images", [])
        ]
        return [self._image(image) for image in images]

    def outputs(
        self, prompt: dict[str, Any], seconds: float = 300, workflow: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Queue an API-format workflow, wait for it, and give what its nodes show, by node id.

        ``workflow``: what the editor sends beside it.

        Raises:
            Rejected: the server refused it.
            Failed: a node failed.
        """
        try:
            extra = {} if workflow is None else {"extra_data": {"extra_pnginfo": {"workflow": workflow}}}
            identity = json.loads(self.post("/prompt", {"prompt": prompt, **extra}))["prompt_id"]
        except urllib.error.HTTPError as error:
            raise Rejected(json.loads(error.read())) from None
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            entry = self.get(f"/history/{identity}").get(identity)
            if entry is not None:
                break
            time.sleep(0.1)
        else:
            raise Failed(f"not done after {seconds} s")
        if entry["status"]["status_str"] != "success":
            raise Failed(json.dumps(entry["status"]["messages"])[-3000:])
        shown: dict[str, Any] = entry["outputs"]
        return shown

    def text(self, path: str) -> str:
        """What is served at ``path``."""
        with urllib.request.urlopen(self.url + path, timeout=60) as answer:
            found: bytes = answer.read()
            return found.decode()

    def _image(self, image: dict[str, str]) -> bytes:
        with urllib.request.urlopen(f"{self.url}/view?{urllib.parse.urlencode(image)}", timeout=60) as answer:
            found: bytes = answer.read()
            return found

    def stop(self) -> None:
        """End it."""
        end(self._process)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process, the hard way where it takes longer than 20 seconds."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
