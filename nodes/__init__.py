"""The nodes, and how ComfyUI gets them."""

from __future__ import annotations

from typing import Any


async def comfy_entrypoint() -> Any:
    """The pack as a ComfyUI extension; ComfyUI calls this once when it loads custom nodes."""
    from .extension import FastCompileExtension

    return FastCompileExtension()
