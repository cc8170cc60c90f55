"""ComfyUI: how its models are called, and where a compiled one takes their place.

``comfy`` is imported when a function here needs it.
"""

from .clip import apply_clip
from .controlnet import apply_controlnet
from .install import apply, apply_devices, report, states
from .vae import apply_vae

__all__ = ["apply", "apply_clip", "apply_controlnet", "apply_devices", "apply_vae", "report", "states"]
