"""The nodes where ComfyUI, Python or PyTorch is too old: a shared workflow runs as without them, and each says why.

They are written in ComfyUI's first form of a node, which every version knows, and import nothing of it.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, ClassVar

from . import why_not

CATEGORY = "model/fast compile"
_PASSES = "until then everything passes these nodes untouched, and pictures are right"


def _why() -> tuple[str, str]:
    why, remedy = why_not() or ("Fast Compile can't run here", "please report it")
    return why, f"{remedy}; {_PASSES}"


def say_so() -> None:
    """In the log, when ComfyUI starts. Others import the pack's folder, too: a test runner does."""
    if "folder_paths" in sys.modules:
        logging.getLogger("fast_compile").warning("Nothing is faster: %s. What you can do: %s.", *_why())


class _Any(str):
    """A type that fits every other: the first versions compare types with ``!=``."""

    __slots__ = ()

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = str.__hash__


_ANY = _Any("*")
_SWITCHES = {"enabled": ("BOOLEAN", {"default": True}), "cuda_graphs": ("BOOLEAN", {"default": True})}
_SETTINGS = {"settings": ("FAST_COMPILE_SETTINGS",)}
_PROMPTS = {"positive": ("CONDITIONING",), "negative": ("CONDITIONING",)}
_CFG = {"cfg": ("FLOAT", {"default": 8.0, "min": 0.0, "max": 100.0, "step": 0.1})}


class _Older:
    """Gives on what came in first, and shows why nothing is faster."""

    CATEGORY = CATEGORY
    FUNCTION = "run"
    REQUIRED: ClassVar[dict[str, Any]] = {}
    OPTIONAL: ClassVar[dict[str, Any]] = {}

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        """As ComfyUI asks for them."""
        return {"required": cls.REQUIRED, "optional": cls.OPTIONAL, "hidden": {"unique_id": "UNIQUE_ID"}}

    def run(self, unique_id: str | None = None, **inputs: Any) -> dict[str, Any]:
        """What ComfyUI calls."""
        _tell(unique_id)
        return {
            "ui": {"text": ["Nothing is faster: {}. What you can do: {}.".format(*_why())]},
            "result": self.result(inputs),
        }

    def result(self, inputs: dict[str, Any]) -> tuple[Any, ...]:
        """The outputs."""
        return (inputs.get(next(iter(self.REQUIRED))),)


def _tell(node: str | None) -> None:
    """The badge of this node, on every page.

    Nothing of the core is imported, which this Python may not be able to read.
    """
    why, advice = _why()
    data = {"nodes": [node], "state": "eager", "model": "", "why": why, "advice": advice, "graph_bytes": 0}
    try:
        sys.modules["server"].PromptServer.instance.send_sync("fast_compile.status", data)
    except Exception:  # nobody listens, or ComfyUI is a library
        pass


def _applies(name: str, of: str) -> type[_Older]:
    return type(
        "Apply", (_Older,), {"REQUIRED": {name: (of,), **_SWITCHES}, "OPTIONAL": _SETTINGS, "RETURN_TYPES": (of,)}
    )


_APPLY_MODEL = _applies("model", "MODEL")
_APPLY_MODEL.OPTIONAL = {**_SETTINGS, "quality": (["exact", "near-exact", "fast"], {"default": "exact"})}
_APPLY_VAE = _applies("vae", "VAE")
_APPLY_VAE.OPTIONAL = {**_SETTINGS, "gpus": ("INT", {"default": 1, "min": 0, "max": 64})}


class _Settings(_Older):
    REQUIRED: ClassVar[dict[str, Any]] = {
        "graph_memory_mb": ("INT", {"default": 0, "min": 0, "max": 1_000_000}),
        "capture_after": ("INT", {"default": 2, "min": 2, "max": 1000}),
        "adopt_weights": ("BOOLEAN", {"default": True}),
        "measure_impls": ("BOOLEAN", {"default": True}),
        "disabled_rewrites": ("STRING", {"default": ""}),
    }
    OPTIONAL: ClassVar[dict[str, Any]] = {
        "quality_budget": ("FLOAT", {"default": 0.0, "min": 0.0, "max": 1.0, "step": 0.001}),
        "quality_layers": ("STRING", {"default": ""}),
        "quality_parts": ("STRING", {"default": ""}),
    }
    RETURN_TYPES = ("FAST_COMPILE_SETTINGS",)
    RETURN_NAMES = ("settings",)

    def result(self, inputs: dict[str, Any]) -> tuple[Any, ...]:
        """Nothing asks for them here."""
        return (None,)


class _SeveralGPUs(_Older):
    REQUIRED: ClassVar[dict[str, Any]] = {"model": ("MODEL",), "gpus": ("INT", {"default": 0, "min": 0, "max": 64})}
    OPTIONAL: ClassVar[dict[str, Any]] = {"devices": ("STRING", {"default": ""})}
    RETURN_TYPES = ("MODEL",)


class _WarmUp(_Older):
    REQUIRED: ClassVar[dict[str, Any]] = {
        "model": ("MODEL",),
        **_PROMPTS,
        "sizes": ("STRING", {"default": "1024x1024", "multiline": True}),
        **_CFG,
    }
    RETURN_TYPES = ("MODEL",)


class _FreeMemory(_Older):
    REQUIRED: ClassVar[dict[str, Any]] = {"anything": (_ANY,)}
    RETURN_TYPES = (_ANY,)
    RETURN_NAMES = ("anything",)
    OUTPUT_NODE = True


def _picture() -> Any:
    from .picture import AMBER, Picture

    return Picture().title("Fast Compile").line(f"{_why()[0]}.", AMBER).tensor()


class _Report(_Older):
    OPTIONAL: ClassVar[dict[str, Any]] = {"of": (_ANY,), "after": (_ANY,)}
    RETURN_TYPES = ("STRING", "IMAGE")
    RETURN_NAMES = ("text", "picture")
    OUTPUT_NODE = True

    def result(self, inputs: dict[str, Any]) -> tuple[Any, ...]:
        """Why there is nothing to report."""
        return _why()[0], _picture()


class _Benchmark(_Older):
    RETURN_TYPES = ("IMAGE", "STRING")
    RETURN_NAMES = ("picture", "text")
    OUTPUT_NODE = True

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        """With this ComfyUI's own samplers."""
        import comfy.samplers

        choices = comfy.samplers.KSampler
        numbers = {"width": 1024, "height": 1024, "batch_size": 1, "steps": 20}
        required: dict[str, Any] = {
            "model": ("MODEL",),
            **_PROMPTS,
            **{name: ("INT", {"default": value, "min": 1, "max": 16384}) for name, value in numbers.items()},
            **_CFG,
            "sampler_name": (choices.SAMPLERS, {"default": "euler"}),
            "scheduler": (choices.SCHEDULERS, {"default": "normal"}),
            "rounds": ("INT", {"default": 3, "min": 1, "max": 100}),
        }
        return {"required": required, "optional": {}, "hidden": {"unique_id": "UNIQUE_ID"}}

    def result(self, inputs: dict[str, Any]) -> tuple[Any, ...]:
        """Why nothing was measured."""
        return _picture(), _why()[0]


NODE_CLASS_MAPPINGS: dict[str, type[_Older]] = {
    "ApplyFastCompile": _APPLY_MODEL,
    "ApplyFastCompileVAE": _APPLY_VAE,
    "ApplyFastCompileCLIP": _applies("clip", "CLIP"),
    "ApplyFastCompileControlNet": _applies("control_net", "CONTROL_NET"),
    "FastCompileSettings": _Settings,
    "FastCompileSeveralGPUs": _SeveralGPUs,
    "FastCompileWarmUp": _WarmUp,
    "FastCompileReport": _Report,
    "FastCompileBenchmark": _Benchmark,
    "FastCompileFreeMemory": _FreeMemory,
}
NODE_DISPLAY_NAME_MAPPINGS = {
    "ApplyFastCompile": "Apply Fast Compile",
    "ApplyFastCompileVAE": "Apply Fast Compile (VAE)",
    "ApplyFastCompileCLIP": "Apply Fast Compile (CLIP)",
    "ApplyFastCompileControlNet": "Apply Fast Compile (ControlNet)",
    "FastCompileSettings": "Fast Compile Settings",
    "FastCompileSeveralGPUs": "Fast Compile on Several GPUs",
    "FastCompileWarmUp": "Fast Compile Warm-Up",
    "FastCompileReport": "Fast Compile Report",
    "FastCompileBenchmark": "Fast Compile Benchmark",
    "FastCompileFreeMemory": "Free Fast Compile Memory",
}
