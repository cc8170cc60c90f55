"""A webui's own server in a process on loopback, and what a client says to it. The standard library is enough."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sfast_core.farm.comfy import free_port
from tests.hosts.comfy.live_server import end

_COMMON = (
    "--skip-prepare-environment --skip-python-version-check --skip-version-check --skip-torch-cuda-test --skip-install --api --no-half "
    "--no-half-vae --no-hashing --no-download-sd-model"
)


@dataclass(frozen=True)
class Host:
    """One of the webuis. In its options, ``{path}`` is its folder."""

    name: str
    path_variable: str
    python_variable: str
    options: str
    settings: tuple[tuple[str, str], ...] = ()


HOSTS = {
    "a1111": Host(
        "A1111",
        "WEBUI_PATH",
        "WEBUI_PYTHON",
        "--use-cpu all --do-not-download-clip --disable-safe-unpickle --opt-sdp-attention",
    ),
    # Gradio 4 serves the data folder alone: where that is another one, the page lacks Forge's own scripts (its issue
    # 1220)
    "forge": Host("Forge", "FORGE_PATH", "FORGE_PYTHON", "--always-cpu --gradio-allowed-path {path}"),
    "reforge": Host(  # it would look for a text encoder of the checkpoint's name beside it
        "reForge", "REFORGE_PATH", "REFORGE_PYTHON", "--always-cpu --all-in-fp32", (("sd_text_encoder", "None"),)
    ),
}


class Failed(Exception):
    """The server answered with an error. ``status`` is its code."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"HTTP {status}: {text[-2000:]}")
        self.status = status


class LiveWebui:
    """``launch.py`` over a data folder of its own, which gets this pack as a link and keeps the log.

    Attributes:
        host: which of the webuis.
        settings: its settings file.
        log: what it has said.
        url: where it answers.
    """

    def __init__(self, host: Host, base: Path, path: Path, python: str, pack: Path, models: Path) -> None:
        self.host = host
        (base / "extensions").mkdir()
        (base / "extensions" / "fast-compile").symlink_to(pack, target_is_directory=True)
        (base / "extensions" / "a-probe").symlink_to(
            Path(__file__).parent / "probe_extension", target_is_directory=True
        )
        (base / "models").symlink_to(models, target_is_directory=True)
        settings = {
            "sd_model_checkpoint": "tiny.safetensors",
            "live_previews_enable": False,
            "show_progressbar": False,
            **dict(host.settings),
        }
        self.settings = base / "config.json"
        self.settings.write_text(json.dumps(settings))
        self.log = base / "server.log"
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        python_path = os.pathsep.join(filter(None, (os.environ.get("WEBUI_PYTHONPATH"), os.environ.get("PYTHONPATH"))))
        environment = {
            **os.environ, "FAST_COMPILE_CPU": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": python_path,
            "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "GRADIO_ANALYTICS_ENABLED": "False", "TQDM_DISABLE": "1",
            "PROBE_CONFIG": str(models / "tiny.yaml"),
        }  # fmt: skip
        options = [option.format(path=path) for option in (*_COMMON.split(), *host.options.split())]
        command = [python, "launch.py", *options, "--data-dir", str(base), "--port", str(port)]
        with self.log.open("w") as log:
            self._process = subprocess.Popen(command, cwd=path, env=environment, stdout=log, stderr=subprocess.STDOUT)

    def wait(self, starts: int = 1, seconds: float = 600) -> None:
        """Until it has said ``starts`` times that it has started and its API answers: before that, a request may break
        its start.

        Raises:
            RuntimeError: it ended, or didn't come up in time; the message ends with its log.
        """
        end = time.monotonic() + seconds
        while time.monotonic() < end and self._process.poll() is None:
            try:
                if self.log.read_text().count("Startup time") >= starts:
                    self.get("/sdapi/v1/options")
                    return
            except (Failed, urllib.error.URLError, ConnectionError):
                pass
            time.sleep(0.5)
        self.stop()
        raise RuntimeError(f"{self.host.name}'s server didn't come up:\n{self.log.read_text()[-3000:]}")

    def get(self, path: str) -> Any:
        """The JSON at ``path``."""
        return self._answer(urllib.request.Request(self.url + path))

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """The JSON that answers a JSON body.

        Raises:
            Failed: the server says that it failed.
        """
        data = json.dumps(body or {}).encode()
        return self._answer(urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}))

    def generate(self, kind: str, body: dict[str, Any], fast: list[Any] | None = None) -> dict[str, Any]:
        """The answer of ``kind`` (txt2img, img2img), its pictures as PNG files' bytes.

        Args:
            kind: the route.
            body: what differs from a small picture in 3 steps.
            fast: the extension's arguments; None leaves them out.
        """
        small = {
            "prompt": "a cat",
            "width": 64,
            "height": 64,
            "steps": 3,
            "seed": 1,
            "sampler_name": "Euler",
            "cfg_scale": 7,
        }
        scripts = {} if fast is None else {"alwayson_scripts": {"Fast Compile": {"args": fast}}}
        answer: dict[str, Any] = self.post(f"/sdapi/v1/{kind}", {**small, "do_not_save_grid": True, **body, **scripts})
        answer["images"] = [base64.b64decode(image) for image in answer["images"]]
        return answer

    def _answer(self, request: urllib.request.Request) -> Any:
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with direct.open(request, timeout=300) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            raise Failed(error.code, error.read().decode(errors="replace")) from None

    def stop(self) -> None:
        """End it."""
        end(self._process)
