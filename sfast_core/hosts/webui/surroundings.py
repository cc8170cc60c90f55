"""What steers a module's forward besides its arguments and structure: the webui's switches.

Asked once before each sampling, where the webui and its extensions have set up what they want.
"""

from __future__ import annotations

import sys
from typing import Any

from ...reporting.reasons.hosts import LOWVRAM, SD_UNET


def surroundings() -> tuple[Any, ...]:
    """A value that is equal as long as a trace stays true, as far as that isn't seen below the module."""
    devices = _host("devices")
    casting = tuple(
        getattr(devices, name, None)
        for name in ("unet_needs_upcast", "force_fp16", "fp8", "dtype_unet", "dtype_inference")
    )
    return casting, getattr(_options(), "upcast_attn", None)


def obstacle() -> str | None:
    """Why the coming sampling's UNet can't be accelerated, or None."""
    shared = _host("shared")
    if getattr(_host("sd_unet"), "current_unet", None) is not None:
        return SD_UNET()
    if getattr(getattr(shared, "cmd_opts", None), "lowvram", False):
        return LOWVRAM()
    return None


def _host(name: str) -> Any:
    """The webui's module of this name, None where it isn't there."""
    return sys.modules.get(f"modules.{name}")


def _options() -> Any:
    return getattr(_host("shared"), "opts", None)
