"""Fast Compile: a ComfyUI node pack that makes the loaded diffusion model several times faster. ComfyUI's entry."""

from __future__ import annotations

if __package__:  # imported by ComfyUI as a package; a test runner may import this file by itself
    from .nodes import comfy_entrypoint

    WEB_DIRECTORY = "./web"  #: the nodes' pages and badges, relative to this file
    __all__ = ["WEB_DIRECTORY", "comfy_entrypoint"]
