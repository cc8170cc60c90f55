"""The nodes, and how ComfyUI gets them."""

from __future__ import annotations

import importlib.util
from typing import Any


def is_too_old() -> bool:
    """Whether this ComfyUI lacks the API that the nodes are written in: then it gets those of ``older``, which say so."""
    try:
        return importlib.util.find_spec("comfy_api.latest") is None
    except ModuleNotFoundError:  # not even comfy_api
        return True


async def comfy_entrypoint() -> Any:
    """The pack as a ComfyUI extension; ComfyUI calls this once when it loads custom nodes."""
    from .extension import FastCompileExtension

    return FastCompileExtension()
