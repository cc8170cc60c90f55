"""Forge's layers make their weights of a GGUF file's blocks at each call: a trace has the bytes, and what Forge's own
code does with them.

Forge lays the blocks out in its own way when it loads them, so what they mean is its code's to say. That is recorded,
function by function.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch

from ...capture import Recorder, in_place_of, one_recording
from ...weights.blocks import bytes_of, is_of_blocks, kind_of, shape_of

_FILES, _DEQUANTISE = ("backend.operations", "backend.operations_gguf"), "dequantize_tensor"
_PARAMETER = "ParameterGGUF"


@contextmanager
def forges_blocks(recorder: Recorder) -> Iterator[None]:
    """For its length, while a call is recorded. A model without such weights is recorded without waiting for
    another.
    """
    if not recorder.table.in_blocks:
        yield
        return
    with one_recording("Forge").lock, ExitStack() as replaced:
        for file in filter(None, map(sys.modules.get, _FILES)):
            if hasattr(file, _DEQUANTISE):
                replaced.enter_context(in_place_of(file, _DEQUANTISE, partial(_dequantised, recorder)))
            if hasattr(file, _PARAMETER):
                replaced.enter_context(in_place_of(vars(file)[_PARAMETER], "to", partial(_moved, recorder)))
        yield


def _dequantised(recorder: Recorder, original: Any, tensor: Any) -> Any:
    """What ``dequantize_tensor`` returns, by Forge's own code for a type of blocks, on the bytes."""
    if recorder.in_leaf or not isinstance(tensor, torch.Tensor) or not is_of_blocks(tensor):
        return original(tensor)
    with recorder.paused():
        data, shape, kind = bytes_of(tensor), shape_of(tensor), kind_of(tensor)
    if kind is None:
        return data
    own = vars(tensor)["gguf_cls"]
    return own.dequantize_blocks_pytorch(data, own.block_size, own.type_size, tensor).view(shape)


def _moved(recorder: Recorder, original: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """``to``: of a weight that is there already, that weight; of one whose memory is what it is, a plain tensor's."""
    if recorder.in_leaf or not is_of_blocks(tensor):
        return original(tensor, *args, **kwargs)
    with recorder.paused():
        data, is_memory = bytes_of(tensor), kind_of(tensor) is None
        device, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)
        here = dtype is None and (
            device is None or device == data.device or (device.index is None and device.type == data.device.type)
        )
    if is_memory:
        return data.to(*args, **kwargs)
    return tensor if here else original(tensor, *args, **kwargs)
