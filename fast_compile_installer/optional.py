"""nvidia-cudnn-frontend: cuDNN's graph API for fused convolutions.

Goes in without its dependencies, and only where it will run.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from . import ROOT, failures, requirements
from .console import announce, say
from .pip import Pip, PipError

NAME = "nvidia-cudnn-frontend"
RETRY_S = 7 * 24 * 3600.0
_MEMORY = ROOT / "build" / "cudnn_frontend.json"


def wanted(again: bool = False) -> str | None:
    """Whether it is missing in the running Python, useful and not tried lately: a key that names this Python and its
    PyTorch, or None.

    ``again``: whenever it was tried.
    """
    torch_version = requirements.version("torch")
    if torch_version is None or why_not(torch_version) is not None:
        return None
    key = f"Python {sys.version_info[0]}.{sys.version_info[1]}, PyTorch {torch_version}"
    return None if not again and failures.lately(_MEMORY, key, RETRY_S) else key


def install(pip: Pip, key: str, limit_s: float = 120.0) -> None:
    """Install it. That it can't be had is no error, and for the same ``key`` isn't tried again for a week."""
    announce(f"installing {NAME} (convolutions fused by cuDNN) ...")
    try:
        # Its dependencies are for other parts of it: the CUTLASS DSL.
        pip.install(["--no-deps", "--only-binary", ":all:", NAME], show=False, limit_s=limit_s)
    except PipError as error:
        say(f"{NAME} can't be installed ({error}); convolutions stay with PyTorch's own kernels")
        failures.remember(_MEMORY, key, str(error))


def why_not(torch_version: str) -> str | None:
    """Why it is not to be installed into the running Python, or None."""
    if importlib.util.find_spec("cudnn") is not None:
        return "it is there"
    if requirements.release(torch_version) < (2, 4):
        return "PyTorch before 2.4 comes with cuDNN 8"
    if not _has_cudnn():
        return "no cuDNN 9 comes with this PyTorch"
    return None if _has_gpu_driver() else "no NVIDIA driver"


def _has_cudnn() -> bool:
    """Whether cuDNN 9 lies where importing torch will load it from."""
    folders = [Path(entry) for entry in sys.path if entry]
    if sys.platform == "win32":
        return any((folder / "torch" / "lib" / "cudnn64_9.dll").is_file() for folder in folders)
    return any((folder / "nvidia" / "cudnn" / "lib" / "libcudnn.so.9").is_file() for folder in folders)


def _has_gpu_driver() -> bool:
    if sys.platform == "win32":
        return Path("C:/Windows/System32/nvcuda.dll").is_file()
    return any(Path(path).exists() for path in ("/dev/nvidiactl", "/dev/dxg"))
