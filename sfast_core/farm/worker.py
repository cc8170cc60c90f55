"""What runs on a machine of a farm for each GPU: a ComfyUI, and who gives it jobs.

Travels there as it is, as :mod:`.comfy` does.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from .comfy import Comfy, Ended, Failed, Refused

SETTINGS = "FAST_COMPILE_FARM_WORKER"  #: the variable with this machine's settings, as JSON
_START_S = 600.0


def texts() -> tuple[str, str]:
    """:mod:`.leash` and :mod:`.repeatable`, which run in ComfyUI's process, where this package may not be."""
    own = Path(__file__).parent
    return (own / "leash.py").read_text("utf-8"), (own / "repeatable.py").read_text("utf-8")


class Worker:
    """A ComfyUI with its folder.

    The machine's settings are ``python`` and ``main`` (ComfyUI's), ``options`` of it, ``packs``, ``folder`` for
    workers' files.

    Args:
        name: of the worker, and of its folder.
        leash, repeatable: what :func:`texts` gives.
    """

    def __init__(self, name: str, leash: str, repeatable: str) -> None:
        settings = json.loads(os.environ[SETTINGS])
        self.folder = Path(settings.get("folder") or tempfile.gettempdir()) / name
        self.folder.mkdir(parents=True, exist_ok=True)
        program = self.folder / "leash.py"
        program.write_text(leash, "utf-8")
        pack = self.folder / "custom_nodes" / "farm_repeatable.py"
        pack.parent.mkdir(exist_ok=True)
        pack.write_text(repeatable, "utf-8")
        self._settings = settings
        self._command = [settings["python"], str(program), settings["main"]]
        self._comfy: Comfy | None = None

    def start(self) -> dict[str, Any]:
        """Start ComfyUI and wait until it answers.

        What is known of the worker: its processes and device, or ``error`` and ``log``.
        """
        comfy = self._comfy = Comfy(self._command, self.folder, self._settings["options"], self._settings["packs"])
        try:
            stats = comfy.wait(_START_S)
        except Ended as error:
            comfy.stop()
            return {"error": str(error), "log": comfy.log_end()}
        device = next((each.get("name", "") for each in stats.get("devices", ())), "")
        return {"pid": os.getpid(), "comfyui_pid": comfy.pid, "device": device, "folder": str(self.folder)}

    def run(self, prompt: dict[str, Any], extra: dict[str, Any], limit_s: float) -> dict[str, Any]:
        """Run a job. ``kind`` is ``done`` (with ``files`` and ``seconds``), or ``refused``, ``failed`` or ``ended``
        (with ``reason`` and ``log``).
        """
        if self._comfy is None:
            return {"kind": "ended", "reason": "ComfyUI was not started", "log": ""}
        began = time.monotonic()
        kinds = {Refused: "refused", Failed: "failed", Ended: "ended"}
        try:
            files = self._comfy.run(prompt, extra, limit_s)
        except (Refused, Failed, Ended) as error:
            return {"kind": kinds[type(error)], "reason": str(error), "log": self._comfy.log_end()}
        return {"kind": "done", "files": files, "seconds": time.monotonic() - began}

    def look(self) -> dict[str, Any]:
        """Whether ComfyUI is there, and how busy the GPU is; while a job runs, too."""
        return {"alive": self._comfy is not None and self._comfy.is_alive(), **gpu_use()}

    def stop(self) -> None:
        """End ComfyUI, and remove the folder."""
        if self._comfy is not None:
            self._comfy.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def gpu_use() -> dict[str, Any]:
    """``gpu_percent``, ``memory_mb``, ``memory_total_mb`` of this process's GPU, as nvidia-smi has it; else nothing."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0]
    program = shutil.which("nvidia-smi")
    if program is None or not seen:
        return {}
    columns = "utilization.gpu,memory.used,memory.total"
    command = [program, f"--id={seen}", f"--query-gpu={columns}", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
        percent, used, total = (float(value) for value in said.split(",")[:3])
    except (OSError, ValueError, subprocess.SubprocessError):
        return {}
    return {"gpu_percent": percent, "memory_mb": used, "memory_total_mb": total}
