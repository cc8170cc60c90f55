"""What the nodes that compile something share: their switches, and what these say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from comfy_api.latest import io

from ..sfast_core import CompileConfig
from .schema import SETTINGS


def switches(thing: str) -> list[io.Input]:
    """The inputs behind the object itself. ``thing``: what passes through untouched when it is off."""
    return [
        io.Boolean.Input("enabled", default=True, tooltip=f"Off: {thing} passes through untouched."),
        io.Boolean.Input(
            "cuda_graphs",
            default=True,
            tooltip=(
                "Replay captured CUDA graphs: the fastest way. Costs GPU memory for each resolution in use; off saves"
                " that memory."
            ),
        ),
        SETTINGS.Input(
            "settings", optional=True, tooltip="Leave it unconnected: the defaults are right for nearly everybody."
        ),
    ]


def metadata_of(hidden: Any) -> dict[str, Any] | None:
    """What ComfyUI writes into the running prompt's pictures, by name, besides the prompt; None: nothing."""
    found = getattr(hidden, "extra_pnginfo", None)
    return found if isinstance(found, dict) else None


def config_of(settings: Any, cuda_graphs: bool) -> CompileConfig:
    """The config that the switches make.

    Raises:
        TypeError: ``settings`` are none of ``Fast Compile Settings``.
    """
    if settings is not None and not isinstance(settings, CompileConfig):
        raise TypeError(f"settings: got a {type(settings).__name__}, needs the output of Fast Compile Settings")
    return replace(settings or CompileConfig(), cuda_graphs=cuda_graphs)
