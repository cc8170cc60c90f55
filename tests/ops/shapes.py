"""The shapes at which the normalisation and linear ops are called by real models, for GPU tests and benchmarks.

SD1.5 makes 512 x 512 images and SDXL 1024 x 1024, both with a batch of 2 (the two halves of classifier-free guidance).
The VAE decodes one 1024 x 1024 image. ``calls`` is how often one forward of the model has the shape, counted in the
forward of the diffusers models.
"""

from __future__ import annotations

from typing import NamedTuple


class GroupNormShape(NamedTuple):
    """``group_norm_act`` in 32 groups; ``add``: the timestep embedding comes before it."""

    size: tuple[int, int, int, int]
    act: str
    add: bool
    calls: int


class LayerNormShape(NamedTuple):
    """``add_layer_norm`` with or without a residual."""

    size: tuple[int, int, int]
    residual: bool
    calls: int


class AdaLayerNormShape(NamedTuple):
    """``ada_layer_norm`` with or without a gated residual."""

    size: tuple[int, int, int]
    gated: bool
    calls: int


class NormRopeShape(NamedTuple):
    """``norm_rope`` of queries or keys [B, L, H, D], with ``behind`` tokens of another stream."""

    size: tuple[int, int, int, int]
    behind: int
    calls: int


class LinearShape(NamedTuple):
    """``linear`` with an activation, from ``size[-1]`` to ``features``."""

    size: tuple[int, int, int]
    features: int
    act: str
    calls: int


GROUP_NORM: dict[str, list[GroupNormShape]] = {
    "sd15": [
        GroupNormShape((2, 320, 64, 64), "silu", False, 3),
        GroupNormShape((2, 320, 64, 64), "silu", True, 5),
        GroupNormShape((2, 320, 64, 64), "none", False, 5),
        GroupNormShape((2, 640, 64, 64), "silu", False, 2),
        GroupNormShape((2, 960, 64, 64), "silu", False, 1),
        GroupNormShape((2, 320, 32, 32), "silu", False, 1),
        GroupNormShape((2, 640, 32, 32), "silu", False, 1),
        GroupNormShape((2, 640, 32, 32), "silu", True, 5),
        GroupNormShape((2, 640, 32, 32), "none", False, 5),
        GroupNormShape((2, 960, 32, 32), "silu", False, 1),
        GroupNormShape((2, 1280, 32, 32), "silu", False, 1),
        GroupNormShape((2, 1920, 32, 32), "silu", False, 1),
        GroupNormShape((2, 640, 16, 16), "silu", False, 1),
        GroupNormShape((2, 1280, 16, 16), "silu", False, 1),
        GroupNormShape((2, 1280, 16, 16), "silu", True, 5),
        GroupNormShape((2, 1280, 16, 16), "none", False, 5),
        GroupNormShape((2, 1920, 16, 16), "silu", False, 1),
        GroupNormShape((2, 2560, 16, 16), "silu", False, 2),
        GroupNormShape((2, 1280, 8, 8), "silu", False, 4),
        GroupNormShape((2, 1280, 8, 8), "silu", True, 7),
        GroupNormShape((2, 1280, 8, 8), "none", False, 1),
        GroupNormShape((2, 2560, 8, 8), "silu", False, 3),
    ],
    "sdxl": [
        GroupNormShape((2, 320, 128, 128), "silu", False, 3),
        GroupNormShape((2, 320, 128, 128), "silu", True, 5),
        GroupNormShape((2, 640, 128, 128), "silu", False, 2),
        GroupNormShape((2, 960, 128, 128), "silu", False, 1),
        GroupNormShape((2, 320, 64, 64), "silu", False, 1),
        GroupNormShape((2, 640, 64, 64), "silu", False, 1),
        GroupNormShape((2, 640, 64, 64), "silu", True, 5),
        GroupNormShape((2, 640, 64, 64), "none", False, 5),
        GroupNormShape((2, 960, 64, 64), "silu", False, 1),
        GroupNormShape((2, 1280, 64, 64), "silu", False, 1),
        GroupNormShape((2, 1920, 64, 64), "silu", False, 1),
        GroupNormShape((2, 640, 32, 32), "silu", False, 1),
        GroupNormShape((2, 1280, 32, 32), "silu", False, 3),
        GroupNormShape((2, 1280, 32, 32), "silu", True, 7),
        GroupNormShape((2, 1280, 32, 32), "none", False, 6),
        GroupNormShape((2, 1920, 32, 32), "silu", False, 1),
        GroupNormShape((2, 2560, 32, 32), "silu", False, 2),
    ],
    "vae": [
        GroupNormShape((1, 512, 128, 128), "silu", False, 10),
        GroupNormShape((1, 512, 128, 128), "none", False, 1),
        GroupNormShape((1, 512, 256, 256), "silu", False, 6),
        GroupNormShape((1, 512, 512, 512), "silu", False, 1),
        GroupNormShape((1, 256, 512, 512), "silu", False, 5),
        GroupNormShape((1, 256, 1024, 1024), "silu", False, 1),
        GroupNormShape((1, 128, 1024, 1024), "silu", False, 6),
    ],
}

LAYER_NORM: dict[str, list[LayerNormShape]] = {
    "sd15": [
        LayerNormShape((2, 4096, 320), False, 5),
        LayerNormShape((2, 4096, 320), True, 10),
        LayerNormShape((2, 1024, 640), False, 5),
        LayerNormShape((2, 1024, 640), True, 10),
        LayerNormShape((2, 256, 1280), False, 5),
        LayerNormShape((2, 256, 1280), True, 10),
        LayerNormShape((2, 64, 1280), False, 1),
        LayerNormShape((2, 64, 1280), True, 2),
    ],
    "sdxl": [
        LayerNormShape((2, 4096, 640), False, 5),
        LayerNormShape((2, 4096, 640), True, 25),
        LayerNormShape((2, 1024, 1280), False, 6),
        LayerNormShape((2, 1024, 1280), True, 174),
    ],
    "flux": [LayerNormShape((1, 4608, 3072), False, 38)],  # the single blocks
}

# Flux's single blocks, and the first norm of all, and the image side of its double blocks, at 1024 x 1024 with a prompt
# of 512 tokens.
ADA_LAYER_NORM: dict[str, list[AdaLayerNormShape]] = {
    "flux": [
        AdaLayerNormShape((1, 4608, 3072), True, 37),
        AdaLayerNormShape((1, 4096, 3072), True, 37),
        AdaLayerNormShape((1, 4608, 3072), False, 1),
    ],
}
NORM_ROPE: dict[str, list[NormRopeShape]] = {
    "flux": [NormRopeShape((1, 4608, 24, 128), 0, 76), NormRopeShape((1, 512, 24, 128), 4096, 38)],
}

# The UNets and the VAE have GEGLU instead. These are the text encoders of SDXL, and the image side of Flux's double
# blocks at 1024 x 1024.
LINEAR_ACT: dict[str, list[LinearShape]] = {
    "clip-l": [LinearShape((2, 77, 768), 3072, "quick_gelu", 12)],
    "clip-g": [LinearShape((2, 77, 1280), 5120, "gelu", 32)],
    "flux": [LinearShape((1, 4096, 3072), 12288, "gelu_tanh", 19)],
}
