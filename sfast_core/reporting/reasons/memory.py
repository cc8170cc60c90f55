"""Memory and weights: where they are, and what computes them."""

from __future__ import annotations

from ..reason import REPORT, Kind
from .advice import IF_COMPUTES, MAKE_ROOM, NOTHING, ROOM

OUT_OF_MEMORY = Kind("out-of-memory", "out of memory", "All graphs were released first, but that wasn't enough.", ROOM)
NOT_THERE = Kind(
    "not-there",
    "the weight {weight} is on {where}, not on {device}",
    "A weight is not where the model runs, and can't be streamed here: the host has moved a part of the model away.",
    MAKE_ROOM,
)
PARTLY_AWAY = Kind(
    "partly-away",
    "{why}, and a part of it is not on {device}",
    "Tensors that should become one weight lie in two places.",
    MAKE_ROOM,
)
BESIDE = Kind(
    "beside",
    "the model is running without Fast Compile too, at this very moment",
    "Another thread is using its weights in their plain layout.",
    NOTHING,
)
COMPUTED = Kind(
    "computed",
    "its layers compute their weights at each call (a {kind} does)",
    "A LoRA on a quantised model, or weights that a node wraps.",
    IF_COMPUTES,
)
WHICH_DTYPE = Kind(
    "which-dtype",
    "the weight {weight} is computed at each use, in a dtype that isn't known beforehand",
    "A LoRA on a quantised model that is partly in main memory.",
    IF_COMPUTES,
)
COMPUTES = Kind(
    "computes",
    "a {kind} computes its weight at each call",
    "Another node wraps the weights of that layer.",
    IF_COMPUTES,
)
NOT_UNDERSTOOD = Kind(
    "not-understood",
    "the weight {name} of a {kind} is not understood",
    "An unknown format of weights.",
    f"take the file in another format (float16, bfloat16, fp8), or {REPORT}",
)
IN_A_FILE = Kind(
    "in-a-file",
    "dynamic VRAM keeps a {kind} in a file",
    "The whole model doesn't fit, and a part of it isn't in main memory either.",
    ROOM,
)
NOT_PAGED = Kind(
    "not-paged",
    "the weight {weight} isn't in dynamic VRAM's range",
    "ComfyUI hasn't loaded it yet.",
    "nothing: it is tried again",
)
UNKNOWN_VRAM = Kind(
    "unknown-vram",
    "this version of dynamic VRAM is not understood",
    "An unknown version of ComfyUI's memory library.",
    f"start ComfyUI with --disable-dynamic-vram, and {REPORT}",
)
