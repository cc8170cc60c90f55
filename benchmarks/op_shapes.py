"""The shapes at which ``benchmarks.ops`` times the ops: of the op tests' cases at real sizes, those that stand for most
of a model's time.

One list of arguments serves both: a case of ``tests/ops/cases`` is checked there and timed here. Images are 1024 x 1024
(SD1.5: 512 x 512), a batch of 2 (VAE, Flux and Z-Image: 1).
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.ops.case import Case

MODELS = ("SD1.5", "SDXL", "VAE", "Flux", "Z-Image")

#: op -> case -> the model that calls it so
SHAPES: dict[str, dict[str, str]] = {
    "group_norm_act": {
        "sd15-2x320x64x64-silu": "SD1.5",
        "sd15-2x1280x8x8-silu": "SD1.5",
        "sdxl-2x320x128x128-silu": "SDXL",
        "sdxl-2x640x64x64-silu-add": "SDXL",
        "sdxl-2x1280x32x32-none": "SDXL",
        "vae-1x128x1024x1024-silu": "VAE",
    },
    "add_layer_norm": {
        "sd15-2x4096x320": "SD1.5",
        "sdxl-2x4096x640": "SDXL",
        "sdxl-2x1024x1280": "SDXL",
        "flux-1x4608x3072-no-residual": "Flux",
    },
    "ada_layer_norm": {
        "flux-1x4608x3072": "Flux",
        "flux-1x4608x3072-no-residual": "Flux",
    },
    "ada_rms_norm": {
        "z-image-1x4320x3840": "Z-Image",
    },
    "norm_rope": {
        "flux-1x4608x24x128": "Flux",
        "flux-1x512x24x128-and-4096": "Flux",
    },
    "linear": {
        "8192x320x320": "SD1.5",
        "8192x640x2560": "SDXL",
        "2048x1280x5120": "SDXL",
        "2x13760x1280": "SDXL",
        "gate-8192x2560x320": "SD1.5",
        "gate-512x10240x1280": "SD1.5",
        "gate-8192x5120x640": "SDXL",
        "gate-2048x10240x1280": "SDXL",
        "act-clip-l-2x77x768-3072-quick_gelu": "SD1.5",
        "act-clip-g-2x77x1280-5120-gelu": "SDXL",
        "act-flux-1x4096x3072-12288-gelu_tanh": "Flux",
        "residual-8192x320x320": "SD1.5",
        "residual-8192x640x2560": "SDXL",
        "residual-2048x1280x1280": "SDXL",
        "residual-2048x1280x5120": "SDXL",
    },
    "conv2d_act": {
        "2x320x64-320-residual": "SD1.5",
        "2x1280x16-1280": "SD1.5",
        "2x1280x8-1280": "SD1.5",
        "2x320x128-320-residual": "SDXL",
        "2x640x64-640": "SDXL",
        "2x1280x32-1280-residual": "SDXL",
        "conv-out": "SDXL",
        "1x512x256-512": "VAE",
        "1x128x1024-128-residual": "VAE",
        "vae-conv-out": "VAE",
    },
    "conv2d_shortcut": {
        "2x320x64-640-320": "SD1.5",
        "2x640x64-1280-640": "SDXL",
    },
    "upsample_conv2d": {
        "2x1280x16": "SD1.5",
        "2x640x64": "SDXL",
        "2x1280x32": "SDXL",
        "1x512x256": "VAE",
    },
    "attention": {
        "2x8x4096x4096-head-40": "SD1.5",
        "2x8x4096x77-head-40": "SD1.5",
        "2x10x4096x4096-head-64": "SDXL",
        "2x20x1024x1024-head-64": "SDXL",
        "2x20x1024x77-head-64": "SDXL",
        "1x1x4096x4096-head-512": "VAE",
        "1x24x4608x4608-head-128": "Flux",
    },
    "attention_of_halves": {
        "2x8x4096-head-40": "SD1.5",
        "2x8x4096-head-40-unlike": "SD1.5",
    },
    "sinusoids": {
        "2-timesteps": "SD1.5",
    },
}


@dataclass(frozen=True)
class OpShape:
    """One op at one of its shapes."""

    op: str
    model: str
    case: Case


def shapes(ops: list[str] | None = None, models: list[str] | None = None) -> list[OpShape]:
    """The shapes of these ops and models; None: of all.

    Raises:
        ValueError: an op or a model of that name isn't there, or a case.
    """
    for kind, asked, known in (("op", ops, tuple(SHAPES)), ("model", models, MODELS)):
        if unknown := [name for name in asked or () if name not in known]:
            raise ValueError(f"benchmarks.ops: there is no {kind} {unknown[0]!r}, only {', '.join(known)}")
    found = []
    for op in ops or SHAPES:
        cases = {case.id: case for case in importlib.import_module(f"tests.ops.cases.{op}").GPU_CASES}
        for name, model in SHAPES[op].items():
            if models is None or model in models:
                if name not in cases:
                    raise ValueError(f"benchmarks.op_shapes: {op} has no case {name!r} in tests/ops/cases/{op}.py")
                found.append(OpShape(op, model, cases[name]))
    return found
