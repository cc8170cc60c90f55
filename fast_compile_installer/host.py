"""``python install.py``: what a host runs at its start, in its own Python. Quick, quiet, and never an obstacle."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from pathlib import Path

from . import ROOT, failures, native, optional, requirements
from .console import announce, say
from .pip import Pip, PipError, for_running_python

PIP_LIMIT_S = 600.0
RETRY_S = 24 * 3600.0
RETRY = "--retry"
_MEMORY = ROOT / "build" / "requirements.json"


def set_up(again: bool) -> None:
    """Install what is missing, build what can be built, and say in one line what stays missing.

    ``again``: also what failed a short while ago.
    """
    pip = for_running_python()
    lacking = _install_missing(pip, again)
    frontend = optional.wanted(again)
    if pip is not None and frontend is not None:
        optional.install(pip, frontend)
    built = native.builder().ensure(say, again=again)
    if built.built:
        say("the CUDA extension is built")
    elif built.library is None:
        lacking.append(f"no CUDA extension ({built.reason}): GroupNorm runs in Triton, or without Triton in PyTorch")
    if lacking:
        say("; ".join(lacking))


def _install_missing(pip: Pip | None, again: bool) -> list[str]:
    """Install the missing requirements; what stays missing and what that costs, in words."""
    names = requirements.read(ROOT / "requirements.txt")
    wanted = requirements.missing(names)
    reason = None
    if wanted and pip is None:
        reason = "this Python has neither pip nor uv"
    elif wanted and pip is not None:
        key = repr(
            (
                sys.executable,
                sys.version_info[:2],
                sorted(wanted),
                os.environ.get("INDEX_URL"),
                os.environ.get("PIP_INDEX_URL"),
            )
        )
        failed = None if again else failures.lately(_MEMORY, key, RETRY_S)
        if failed is not None:
            reason = f"{failed}; tried before, and again a day later or by python install.py {RETRY}"
        else:
            announce(f"installing {', '.join(wanted)} (once; it may take a minute) ...")
            try:
                _install(pip, wanted)
            except PipError as error:
                reason = str(error)
                failures.remember(_MEMORY, key, reason)
    lacking = [f"{name} is missing ({reason})" for name in wanted] if reason else []
    if sys.platform == "win32" and importlib.util.find_spec("triton") is None:
        lacking.append(
            "Triton is missing (pip install triton-windows): fused operators run as plain PyTorch, slower, with equal"
            " results"
        )
    return lacking


def _install(pip: Pip, wanted: list[str]) -> None:
    """Install into the host's Python, holding the host's PyTorch and numpy where they are."""
    held = [f"{name}=={version}" for name in ("torch", "numpy") if (version := requirements.version(name)) is not None]
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder) / "constraints.txt"
        constraints.write_text("\n".join(held), encoding="utf-8")
        pip.install([*wanted, "--constraint", str(constraints)], show=False, limit_s=PIP_LIMIT_S)
