"""``apply_vae``: a copy of a VAE whose encoder and decoder are compiled.

``decode`` and ``encode`` aren't forwards, so the two halves below them are compiled, whose forwards are plain: the batch that the host takes
from the free memory, tiles and the regulariser around them stay the host's.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from ...ahead import prepare
from ...config import CompileConfig
from .doorway import Doorway, behind
from .install import watched_clone
from .parts import Arguments, Kind, Part

_ENTRIES = ("decode", "encode", "decode_tiled", "encode_tiled")
#: What the halves are called, and the most pixels of their input that a graph is captured for: those of 512x512.
_HALVES = {"encoder": 512 * 512, "taesd_encoder": 512 * 512, "decoder": 64 * 64, "taesd_decoder": 64 * 64}


def apply_vae(vae: Any, config: CompileConfig | None = None) -> Any:
    """A copy of a VAE that encodes and decodes through compiled forwards. The incoming VAE stays as it was.

    Args:
        vae: a ``comfy.sd.VAE``.
        config: None for the defaults.

    Raises:
        TypeError: ``vae`` is no VAE.
    """
    if not all(hasattr(vae, name) for name in ("first_stage_model", "decode", "encode")):
        raise TypeError(f"vae: got a {type(vae).__name__}, needs a ComfyUI VAE")
    model = behind(vae.first_stage_model)
    if model is None or not hasattr(vae, "patcher"):  # a checkpoint without a VAE: the host says so when it is used
        return vae
    prepare()
    fast = copy.copy(vae)
    fast.patcher = watched_clone(vae.patcher)
    fast.first_stage_model = Doorway(model, partial(_parts, fast.patcher), config or CompileConfig(), _ENTRIES)
    return fast


def _parts(patcher: Any, model: torch.nn.Module) -> Iterator[Part]:
    kind, found = type(model).__name__, False
    for name, most in _HALVES.items():
        half = getattr(model, name, None)
        if isinstance(half, torch.nn.Module):
            found = True
            shown = name.removeprefix("taesd_")
            yield Part(half, f"VAE {shown} ({kind})", model, Kind(_why_not, partial(_why_no_graph, most), few_shapes=True), patcher)
    if not found:
        yield Part(model, f"VAE ({kind})", model, patcher=patcher, left_alone="it has no encoder or decoder that is understood")


def _why_not(args: Arguments) -> str | None:
    x = args[0] if args else None
    if not isinstance(x, torch.Tensor) or x.dim() != 4:
        shown = f"{x.dim()} dimensions" if isinstance(x, torch.Tensor) else "no tensor"
        return f"its input has {shown}: VAEs of pictures are accelerated, not those of video and sound"
    if any(isinstance(value, (list, dict)) for value in args):
        return "it is given a container that it may write to"
    if x.device.type == "cuda" and x.dtype == torch.float32:
        return "it computes in float32, and the fused kernels are worth it in float16 and bfloat16"
    return None


def _why_no_graph(most: int, args: Arguments) -> str | None:
    """Big pictures take milliseconds a kernel (1024x1024: 23 ms in all on an H100), so launching them costs nothing; a graph holds gigabytes."""
    pixels = args[0].shape[0] * args[0].shape[2] * args[0].shape[3]
    return "for a picture as large as this a graph saves no time, and takes the diffusion model's memory" if pixels > most else None
