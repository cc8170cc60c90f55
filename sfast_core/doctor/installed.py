"""What is installed: PyTorch, the GPU, the libraries that kernels are written in."""

from __future__ import annotations

import importlib
import importlib.metadata
import platform
from collections.abc import Iterator

import torch

from ..native import load
from ..target import Target
from .findings import NOTE, OK, PROBLEM, Finding

_TRITON = {
    "Linux": "pip install triton (it comes with PyTorch's CUDA builds on Linux)",
    "Windows": (
        "pip install triton-windows, in the version that its page names for this PyTorch; until then PyTorch's own"
        " kernels run"
    ),
}
_OLDEST_TORCH, _OLDEST_GPU = (2, 6), (8, 0)


def examine_installed(target: Target) -> Iterator[Finding]:
    """Versions, the GPU, Triton, cuDNN's frontend, xformers, the CUDA extension."""
    yield Finding(OK, "python", f"{platform.python_version()} on {platform.system()}")
    yield _torch()
    yield _gpu(target)
    yield _cudnn()
    yield _library(
        "triton",
        "triton",
        PROBLEM if target.is_cuda else NOTE,
        "most kernels for GPUs are written in it",
        _TRITON.get(platform.system(), "PyTorch brings Triton on Linux only; here PyTorch's own kernels run")
        if target.is_cuda
        else None,
    )
    yield _library(
        "nvidia-cudnn-frontend",
        "cudnn",
        PROBLEM if target.is_cuda else NOTE,
        "it makes a convolution and its bias one kernel",
        (
            "python install.py, in this pack's folder and with this Python; or pip install --no-deps"
            " nvidia-cudnn-frontend"
            if target.is_cuda
            else None
        ),
    )
    yield _library("xformers", "xformers", NOTE, "one of several ways to compute attention", None)
    reason = load.why_not(target.device) if target.is_cuda else "it is for a GPU"
    yield (
        Finding(OK, "CUDA extension", "built and opened")
        if reason is None
        else Finding(NOTE, "CUDA extension", f"not in use: {reason}")
    )


def _torch() -> Finding:
    text = f"{torch.__version__}, CUDA {torch.version.cuda or 'not built in'}"
    release = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if release < _OLDEST_TORCH:
        return Finding(
            PROBLEM, "torch", f"{text}; 2.6 or newer is needed", "install a newer PyTorch, as the host's own guide says"
        )
    return Finding(OK, "torch", text)


def _gpu(target: Target) -> Finding:
    if not target.is_cuda:
        if getattr(torch.version, "hip", None):
            mend = "there is no way: models run as before"
            return Finding(PROBLEM, "GPU", "this PyTorch is built for AMD; the kernels are for NVIDIA", mend)
        if torch.version.cuda is None:
            mend = "where there is an NVIDIA GPU, install PyTorch's CUDA build (pytorch.org, Get Started)"
            return Finding(PROBLEM, "GPU", "this PyTorch is built without CUDA", mend)
        return Finding(
            PROBLEM,
            "GPU",
            "PyTorch sees no NVIDIA GPU",
            "run nvidia-smi: if it fails, the driver is missing or too old",
        )
    text = (
        f"{target.name}, compute capability {target.capability[0]}.{target.capability[1]}, driver for CUDA {_driver()}"
    )
    if target.capability < _OLDEST_GPU:
        mend = "there is no way: PyTorch's own kernels run instead of most of these"
        return Finding(PROBLEM, "GPU", f"{text}; most kernels need 8.0", mend)
    return Finding(OK, "GPU", text)


def _driver() -> str:
    try:
        version = torch._C._cuda_getDriverVersion()
    except (AttributeError, RuntimeError):
        return "unknown"
    return f"{version // 1000}.{version % 1000 // 10}"


def _cudnn() -> Finding:
    version = torch.backends.cudnn.version() if torch.version.cuda else None
    return Finding(OK if version else NOTE, "cuDNN", str(version) if version else "none comes with this PyTorch")


def _library(name: str, module: str, missing: str, purpose: str, mend: str | None) -> Finding:
    """Whether a library can be imported; installed and broken is worse than missing."""
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        version = ""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name == module:
            return Finding(missing, name, f"not installed: {purpose}", mend)
        return Finding(
            PROBLEM, name, f"{version} can't be imported: {error}", f"pip install {error.name}, or pip uninstall {name}"
        )
    except Exception as error:
        text = f"{version} can't be imported: {type(error).__name__}: {error}"
        return Finding(PROBLEM, name, text, f"pip uninstall {name}" + (f", then: {mend}" if mend else ""))
    return Finding(OK, name, version or "installed")
