"""The fused operators: a folder each. :func:`all_ops` imports them when it is called, not before."""

from __future__ import annotations

import importlib

from .spec import Impl, Op

__all__ = ["NAMES", "Impl", "Op", "all_ops"]

NAMES = (
    "group_norm_act",
    "group_norm_affine",
    "group_moments",
    "add_layer_norm",
    "ada_layer_norm",
    "ada_rms_norm",
    "norm_rope",
    "linear",
    "dequantise_blocks",
    "add_low_rank",
    "quantise",
    "norm_quantise",
    "scaled_linear",
    "scaled_glu",
    "routed_experts",
    "routed_scaled_experts",
    "conv2d_act",
    "conv2d_shortcut",
    "upsample_conv2d",
    "norm_pad_video",
    "attention",
    "attention_of_halves",
    "sinusoids",
)


def all_ops() -> dict[str, Op]:
    """Every op by name."""
    return {name: importlib.import_module(f".{name}", __package__).OP for name in NAMES}
