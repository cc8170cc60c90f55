"""What a machine brings to a farm: its ComfyUI, with this pack, and how many workers it has room for."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .errors import FarmError

PACK = Path(__file__).resolve().parents[2]  #: this pack's folder


class Machine(NamedTuple):
    """What one is told to bring.

    Attributes:
        workers: how many; None: one for each GPU.
        comfyui: the folder of the ComfyUI that they run; None: the one in whose ``custom_nodes`` this pack is.
        python: that runs it; None: this one.
        options: of its ``main.py``.
    """

    workers: int | None
    comfyui: Path | None
    python: str | None
    options: Sequence[str]

    def settings(self, folder: Path) -> dict[str, Any]:
        """What :class:`.worker.Worker` reads. ``folder``: for the workers' files.

        Raises:
            FarmError: there is no ComfyUI.
        """
        comfyui = self.comfyui
        if comfyui is None and PACK.parent.name == "custom_nodes":
            comfyui = PACK.parents[1]
        if comfyui is None:
            raise FarmError("--comfyui is needed: the folder of the ComfyUI that workers run")
        main = comfyui.expanduser().resolve() / "main.py"
        if not main.is_file():
            raise FarmError(f"--comfyui {comfyui}: there is no main.py in it")
        return {
            "python": self.python or sys.executable,
            "main": str(main),
            "options": list(self.options),
            "packs": packs(main.parent),
            "folder": str(folder),
        }


def packs(comfyui: Path) -> dict[str, str]:
    """This pack, where it isn't among a ComfyUI's own or isn't a node pack here, but installed as a library."""
    if not (PACK / "nodes" / "apply.py").is_file():
        return {}
    installed = comfyui / "custom_nodes"
    there = installed.is_dir() and any(each.resolve() == PACK for each in installed.iterdir())
    return {} if there else {"fast-compile": str(PACK)}


def count_gpus() -> int:
    """How many NVIDIA GPUs this machine has, as its driver lists them."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return 0
    try:
        said = subprocess.run([program, "--list-gpus"], capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return 0
    return sum(line.startswith("GPU ") for line in said.splitlines())


def room(workers: int | None) -> int:
    """How many workers belong on this machine: as many as were asked for, else one for each GPU.

    Raises:
        FarmError: there is none.
    """
    count = count_gpus() if workers is None else workers
    if count < 1:
        raise FarmError(
            "there is no NVIDIA GPU here; --workers N starts workers all the same, with ComfyUI's --cpu behind a --"
        )
    return count
