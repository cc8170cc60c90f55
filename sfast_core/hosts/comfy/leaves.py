"""ComfyUI's layers cast or load their weights at each call; a trace must name the weight, not record the way there."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ...capture import Recorder, stands_for
from ...forks import OwnLock
from ...weights.part import has_parts
from .page import Page


@functools.cache
def _one_recording() -> OwnLock:
    """One at a time: two that overlap would put each other's functions back."""
    return OwnLock()


@contextmanager
def casting_leaves(recorder: Recorder) -> Iterator[None]:
    """While a call is recorded, let ``comfy.ops.cast_bias_weight`` run unrecorded and tell the recorder what it returned.

    The function is put back however the call ends. Other threads pass through it as before. Where this ComfyUI has no such function
    its layers are recorded like any other.
    """
    import comfy.ops

    with _one_recording().lock:
        cast, uncast = getattr(comfy.ops, "cast_bias_weight", None), getattr(comfy.ops, "uncast_bias_weight", None)
        if cast is None:
            yield
            return
        thread = threading.get_ident()

        def named_cast(module: Any, *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != thread:
                return cast(module, *args, **kwargs)
            if recorder.in_leaf:
                return cast(module, *args, **kwargs)
            if _has_parts(module):
                return _by_parts(recorder, cast, module, args, kwargs)
            with recorder.paused():  # asking a tensor for its shape is a torch function too
                result = cast(module, *args, **kwargs)
                _bind(recorder, module, result)
            return result

        def unrecorded_uncast(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != thread or uncast is None:
                return uncast(*args, **kwargs) if uncast else None
            with recorder.paused():
                return uncast(*args, **kwargs)

        stands_for(named_cast, cast)
        stands_for(unrecorded_uncast, uncast)
        try:
            comfy.ops.cast_bias_weight = named_cast
            if uncast is not None:
                comfy.ops.uncast_bias_weight = unrecorded_uncast
            yield
        finally:
            comfy.ops.cast_bias_weight = cast
            if uncast is not None:
                comfy.ops.uncast_bias_weight = uncast


def _has_parts(module: Any) -> bool:
    """Whether a layer's weight is quantised, and lies where the layer has it."""
    weight = getattr(module, "weight", None)
    return isinstance(weight, torch.Tensor) and has_parts(weight) and not hasattr(module, "_v")


def _by_parts(recorder: Recorder, cast: Any, module: Any, args: Any, kwargs: Any) -> Any:
    """What is done to a quantised weight is recorded: it is done to its parts."""
    if getattr(module, "weight_function", None) or getattr(module, "bias_function", None):
        recorder.refuse(f"a {type(module).__name__} computes its weight at each call", passing=True)
    return cast(module, *args, **kwargs)


def _bind(recorder: Recorder, module: Any, result: Any) -> None:
    """Tell the recorder whose weight and bias ``cast_bias_weight`` has returned."""
    if getattr(module, "weight_function", None) or getattr(module, "bias_function", None):
        recorder.refuse(f"a {type(module).__name__} computes its weight at each call", passing=True)
    for name, tensor in zip(("weight", "bias"), result[:2], strict=False):
        if tensor is not None:
            recorder.bind_weight(tensor, module, name, Page() if hasattr(module, "_v") else None)
