"""The nodes, and how ComfyUI gets them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import sys
from typing import Any

OLDEST_PYTHON, OLDEST_TORCH = (3, 10), (2, 6)
NEEDS = "0.3.64"  # of ComfyUI


def why_not() -> tuple[str, str] | None:
    """Why nothing of this pack can run here, and what the user can do about it: clauses; None where it can.

    Then ComfyUI gets the nodes of ``older``, which say so and let everything pass.
    """
    if sys.version_info[:2] < OLDEST_PYTHON:
        here = "{}.{}".format(*sys.version_info[:2])
        return (
            f"this ComfyUI runs on Python {here}, and Fast Compile needs 3.10 or newer",
            "run ComfyUI with a newer Python",
        )
    version = _torch_version()
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < OLDEST_TORCH:
        return (
            f"this is PyTorch {version}, and Fast Compile needs 2.6 or newer",
            "update PyTorch, as ComfyUI's own guide says",
        )
    try:
        has_api = importlib.util.find_spec("comfy_api.latest") is not None
    except ModuleNotFoundError:  # not even comfy_api
        has_api = False
    if not has_api:
        return f"this ComfyUI is too old for Fast Compile, which needs {NEEDS} or newer", "update ComfyUI"
    return None


def _torch_version() -> str:
    found = getattr(sys.modules.get("torch"), "__version__", None)  # that of builds that have no metadata, too
    if found is None:
        try:
            found = importlib.metadata.version("torch")
        except importlib.metadata.PackageNotFoundError:
            found = "0.0, which isn't installed"
    return str(found)


async def comfy_entrypoint() -> Any:
    """The pack as a ComfyUI extension; ComfyUI calls this once when it loads custom nodes."""
    from .extension import FastCompileExtension

    return FastCompileExtension()
