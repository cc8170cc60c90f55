"""ComfyUI: how its models are called, and where a compiled one takes their place. ``comfy`` is imported when a function here needs it."""

from .install import apply, report, states

__all__ = ["apply", "report", "states"]
