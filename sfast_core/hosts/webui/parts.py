"""What of a webui's model is compiled besides the UNet: the halves of its VAE, and the layers of its text encoders."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from ...reporting.reasons.hosts import NO_CLIP, NO_HALVES
from ..parts import Kind
from ..vae import halves

VAE, TEXT_ENCODER = "vae", "text_encoder"
#: Tokens and the place of a prompt's end stay the webui's, so one trace serves every prompt of as many sections.
_LAYERS = Kind(few_shapes=True)
#: How the embedders around open_clip run its layers: not by a forward, but by this method.
_OPEN_CLIP = "text_transformer_forward"


@dataclass(frozen=True)
class Part:
    """One module that is compiled, or not.

    Attributes:
        module: what is compiled is one of its methods.
        name: for the report.
        method: the method's name.
        kind: its particularities.
        left_alone: why it isn't compiled at all, or None. Then only calls are counted.
    """

    module: torch.nn.Module
    name: str
    method: str = "forward"
    kind: Kind = field(default_factory=Kind)
    left_alone: str | None = None


def unet_of(sd_model: Any) -> Any:
    """The UNet of a webui's model."""
    forge = getattr(sd_model, "forge_objects", None)
    return sd_model.model.diffusion_model if forge is None else forge.unet.model.diffusion_model


def parts_of(sd_model: Any) -> Iterator[tuple[str, Part]]:
    """Every part of a webui's model, with which of the switches is its: ``VAE`` or ``TEXT_ENCODER``."""
    forge = getattr(sd_model, "forge_objects", None)
    vae = sd_model.first_stage_model if forge is None else forge.vae.first_stage_model
    text = sd_model.cond_stage_model if forge is None else forge.clip.cond_stage_model
    yield from ((VAE, part) for part in _vae(vae))
    yield from ((TEXT_ENCODER, part) for part in _text_encoders(text))


def _vae(vae: Any) -> Iterator[Part]:
    found = False
    for half, name, kind in halves(vae):
        found = True
        yield Part(half, name, kind=kind)
    if not found and isinstance(vae, torch.nn.Module):
        yield Part(vae, f"VAE ({type(vae).__name__})", left_alone=NO_HALVES())


def _text_encoders(model: Any, path: str = "") -> Iterator[Part]:
    """The encoders at or below a module. They hold no others, so their hundreds of modules aren't walked."""
    if not isinstance(model, torch.nn.Module):
        return
    transformer = getattr(model, "transformer", None)
    if hasattr(type(model), _OPEN_CLIP):
        yield Part(model, _shown(path, model), _OPEN_CLIP, _LAYERS)
    elif isinstance(transformer, torch.nn.Module):
        layers = getattr(getattr(transformer, "text_model", None), "encoder", None)
        if isinstance(layers, torch.nn.Module):
            yield Part(layers, _shown(path, transformer), kind=_LAYERS)
        else:
            yield Part(
                transformer,
                _shown(path, transformer),
                left_alone=NO_CLIP(known="CLIP", why="the prompts of other text encoders differ in length"),
            )
    else:
        for name, child in model.named_children():
            yield from _text_encoders(child, f"{path}.{name}" if path else name)


def _shown(path: str, model: torch.nn.Module) -> str:
    place = ".".join(name for name in path.split(".") if name not in ("", "wrapped"))  # what A1111 puts around each
    return f"Text encoder {place or 'clip'} ({type(model).__name__})"
