"""ComfyUI's layers cast or load their weights at each call; a trace must name the weight, not record the way there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ...capture import Recorder


@contextmanager
def casting_leaves(recorder: Recorder) -> Iterator[None]:
    """While a call is recorded, let ``comfy.ops.cast_bias_weight`` run unrecorded and tell the recorder what it returned.

    The function is put back however the call ends. Other threads pass through it as before.
    """
    import threading

    import comfy.ops

    thread, cast, uncast = threading.get_ident(), comfy.ops.cast_bias_weight, getattr(comfy.ops, "uncast_bias_weight", None)

    def named_cast(module: Any, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread:
            return cast(module, *args, **kwargs)
        with recorder.paused():
            result = cast(module, *args, **kwargs)
        if getattr(module, "weight_function", None) or getattr(module, "bias_function", None):
            recorder.refuse(f"a {type(module).__name__} computes its weight at each call", passing=True)
        for name, tensor in zip(("weight", "bias"), result[:2], strict=False):
            if tensor is not None:
                recorder.bind_weight(tensor, module, name)
        return result

    def unrecorded_uncast(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread or uncast is None:
            return uncast(*args, **kwargs) if uncast else None
        with recorder.paused():
            return uncast(*args, **kwargs)

    comfy.ops.cast_bias_weight = named_cast
    if uncast is not None:
        comfy.ops.uncast_bias_weight = unrecorded_uncast
    try:
        yield
    finally:
        comfy.ops.cast_bias_weight = cast
        if uncast is not None:
            comfy.ops.uncast_bias_weight = uncast
