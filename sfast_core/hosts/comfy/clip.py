"""``apply_clip``: a clone of a CLIP object whose text encoders are compiled.

The layers between embedding and pooling are: tokens, weights, and the place of a prompt's end, which differ from prompt
to prompt, stay the host's, so one trace serves every prompt of as many sections of 77 tokens. Language models get their
prompts padded (:mod:`.padding`).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from ...config import CompileConfig
from ...machine.ahead import prepare
from ...reporting.reasons.hosts import NO_CLIP, OTHER_MODEL
from ..parts import Kind
from .in_place import with_patches_in_place
from .install import watched_clone
from .padding import may_be_padded, padded
from .parts import Part
from .proxy import ModuleProxy, behind

_ENTRIES = ("encode_token_weights",)
_ENCODER = ("set_clip_options", "encode_token_weights")  #: what a text encoder of the host has
#: Where the layers are below a text model: CLIP, T5 and BERT.
_LAYERS = ("text_model.encoder", "encoder", "bert.encoder")
_CAUSAL = "model"  #: and of language models
_LAYERS_OF = Kind(few_shapes=True, writes_input=True)
_CAUSAL_LAYERS_OF = Kind(few_shapes=True, padded=padded)


def apply_clip(clip: Any, config: CompileConfig | None = None) -> Any:
    """A clone of a CLIP object that encodes prompts through compiled forwards. The incoming object stays as it was.

    Args:
        clip: a ``comfy.sd.CLIP``.
        config: None for the defaults.

    Raises:
        TypeError: ``clip`` is no CLIP.
    """
    if not all(hasattr(clip, name) for name in ("cond_stage_model", "patcher", "clone", "tokenize")):
        raise TypeError(f"clip: got a {type(clip).__name__}, needs a ComfyUI CLIP")
    prepare()
    fast = clip.clone()
    fast.patcher = with_patches_in_place(watched_clone(clip.patcher))
    model = behind(clip.cond_stage_model)
    fast.cond_stage_model = ModuleProxy(model, partial(_parts, fast.patcher), config or CompileConfig(), _ENTRIES)
    return fast


def _parts(patcher: Any, model: torch.nn.Module) -> Iterator[Part]:
    found = False
    for path, module in _encoders(model):
        found, text = True, module.transformer
        name = f"Text encoder {path or 'clip'} ({type(text).__name__})"
        layers, causal = _layers(text), getattr(text, _CAUSAL, None)
        if layers is not None:
            yield Part(layers, name, model, _LAYERS_OF, patcher)
        elif isinstance(causal, torch.nn.Module) and may_be_padded(causal):
            yield Part(causal, name, model, _CAUSAL_LAYERS_OF, patcher)
        else:
            reason = NO_CLIP(
                known="CLIP, T5, BERT or causal model",
                why="its prompts differ in length, and each would be traced anew",
            )
            yield Part(text, name, model, patcher=patcher, left_alone=reason)
    if not found:
        yield Part(
            model, f"Text encoder ({type(model).__name__})", model, patcher=patcher, left_alone=OTHER_MODEL(what="it")
        )


def _encoders(module: torch.nn.Module, path: str = "") -> Iterator[tuple[str, Any]]:
    """The host's text encoders at or below a module.

    They hold no others: their hundreds of modules aren't walked at each prompt.
    """
    if isinstance(getattr(module, "transformer", None), torch.nn.Module) and all(
        map(partial(hasattr, module), _ENCODER)
    ):
        yield path, module
        return
    for name, child in module.named_children():
        yield from _encoders(child, f"{path}.{name}" if path else name)


def _layers(text: torch.nn.Module) -> torch.nn.Module | None:
    for path in _LAYERS:
        layers: Any = text
        for name in path.split("."):
            layers = getattr(layers, name, None)
        if (
            isinstance(layers, torch.nn.Module)
            and "intermediate_output" in inspect.signature(type(layers).forward).parameters
        ):
            return layers
    return None
