"""Fast Compile: a ComfyUI node pack that makes the loaded diffusion model several times faster. ComfyUI's entry."""

from __future__ import annotations

if __package__:  # imported by ComfyUI as a package; a test runner may import this file by itself
    from .nodes import comfy_entrypoint, why_not

    WEB_DIRECTORY = "./web"  #: the nodes' pages and badges, relative to this file
    __all__ = ["WEB_DIRECTORY", "comfy_entrypoint"]
    if why_not() is not None:
        from .nodes.older import NODE_CLASS_MAPPINGS as NODE_CLASS_MAPPINGS
        from .nodes.older import NODE_DISPLAY_NAME_MAPPINGS as NODE_DISPLAY_NAME_MAPPINGS
        from .nodes.older import say_so

        say_so()
