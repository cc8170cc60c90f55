"""The halves of a VAE. They are compiled, since ``decode`` and ``encode`` aren't forwards; batches, tiles and the
regulariser around them stay the host's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from ..machine.numerics import convolutions_round
from ..reporting.reasons.graphs import TOO_LARGE
from ..reporting.reasons.hosts import FLOAT32, NOT_A_PICTURE
from .parts import Arguments, Kind

#: The halves' names, and the most pixels of their input for which a graph is captured: those of a 512x512 picture.
HALVES = {"encoder": 512 * 512, "taesd_encoder": 512 * 512, "decoder": 64 * 64, "taesd_decoder": 64 * 64}


def halves(vae: Any) -> Iterator[tuple[torch.nn.Module, str, Kind]]:
    """The modules of ``vae`` to compile, each with its name for the report and its kind; none of an unknown VAE."""
    for attribute, most in HALVES.items():
        half = getattr(vae, attribute, None)
        if isinstance(half, torch.nn.Module):
            name = f"VAE {attribute.removeprefix('taesd_')} ({type(vae).__name__})"
            yield half, name, Kind(_why_not, partial(_why_no_graph, most), few_shapes=True)


def _why_not(args: Arguments) -> str | None:
    x = args[0] if args else None
    if not isinstance(x, torch.Tensor) or x.dim() < 3:
        shown = f"{x.dim()} dimensions" if isinstance(x, torch.Tensor) else "no tensor"
        return NOT_A_PICTURE(shown=shown)
    if x.device.type == "cuda" and x.dtype == torch.float32 and not convolutions_round():
        return FLOAT32()  # float32 convolutions are fast with channels innermost only in TF32
    return None


def _why_no_graph(most: int, args: Arguments) -> str | None:
    """The reason against a graph for large pictures: their kernels take so long (23 ms in all for 1024x1024 on an H100)
    that launching them costs nothing, and a graph would hold gigabytes.
    """
    pixels = args[0].shape[0] * math.prod(args[0].shape[2:])
    return TOO_LARGE() if pixels > most else None
