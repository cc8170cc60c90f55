"""What a model of transformers' is asked for besides its result (``output_hidden_states``): it collects that by hooks,
which the first call that asks puts onto its layers.

A call that changes its model can't be recorded. So the hooks are put on in front of it, by the library's own function.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Mapping
from typing import Any

import torch

_FILE, _PUT_ON, _THERE = (
    "transformers.utils.output_capturing",
    "maybe_install_capturing_hooks",
    "_output_capturing_hooks_installed",
)
_ASKED = {"cross_attentions": "attentions", "mask_decoder_attentions": "attentions"}  #: by another name


class Collectors:
    """The models at or below ``root`` that have no such hooks yet. It holds them weakly."""

    def __init__(self, root: torch.nn.Module) -> None:
        self._models = [weakref.ref(module) for module in root.modules() if _collects(module)]

    def get_ready(self, kwargs: Mapping[str, Any]) -> None:
        """Have hooks put on as far as a call with these keyword arguments asks for what they collect."""
        if self._models:
            self._models = [model for model in self._models if not _has_hooks(model(), kwargs)]


def _collects(module: torch.nn.Module) -> bool:
    """Whether the library's decorator is around the forward, among others."""
    there = sys.modules.get(_FILE)
    if not hasattr(there, _PUT_ON):
        return False
    forward = inspect.getattr_static(type(module), "forward", None)  # TorchScript's raises where it is asked for
    while forward is not None:
        if getattr(getattr(forward, "__code__", None), "co_filename", None) == there.__file__:  # type: ignore[union-attr]
            return True
        forward = getattr(forward, "__wrapped__", None)
    return False


def _has_hooks(model: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether a model has its hooks, or gets them now; one that is gone needs none."""
    if model is None or getattr(model, _THERE, False):
        return True
    names = {f"output_{_ASKED.get(name, name)}" for name in getattr(model, "_can_record_outputs", None) or ()}
    if not any(kwargs.get(name, getattr(model.config, name, False)) for name in names):
        return False
    getattr(sys.modules[_FILE], _PUT_ON)(model)
    return True
