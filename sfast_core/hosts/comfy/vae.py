"""``apply_vae``: a copy of a VAE whose encoder and decoder are compiled."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from ...config import CompileConfig
from ...machine.ahead import prepare
from ...reporting.reasons.hosts import NO_HALVES
from ..vae import halves
from .install import watched_clone
from .parts import Part
from .proxy import ModuleProxy, behind

_ENTRIES = ("decode", "encode", "decode_tiled", "encode_tiled")


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
    fast.first_stage_model = ModuleProxy(model, partial(_parts, fast.patcher), config or CompileConfig(), _ENTRIES)
    return fast


def _parts(patcher: Any, model: torch.nn.Module) -> Iterator[Part]:
    found = False
    for half, name, kind in halves(model):
        found = True
        yield Part(half, name, model, kind, patcher)
    if not found:
        name = f"VAE ({type(model).__name__})"
        yield Part(model, name, model, patcher=patcher, left_alone=NO_HALVES())
