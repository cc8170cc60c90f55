"""Layers that dequantise a GGUF file's blocks at each call: a trace has that as one op on the bytes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch

from ..capture import Recorder, in_place_of
from ..ops.dequantise_blocks import dequantise_blocks
from ..weights.blocks import bytes_of, is_of_blocks, kind_of, shape_of

_DIFFUSERS, _DEQUANTISE = "diffusers.quantizers.gguf.utils", "dequantize_gguf_tensor"
_WIDE = "BF16"  #: the type whose values diffusers converts to float32


@contextmanager
def blocks_recorded(recorder: Recorder) -> Iterator[None]:
    """A context in which diffusers' GGUF layers are recorded."""
    with ExitStack() as replaced:
        if hasattr(there := sys.modules.get(_DIFFUSERS), _DEQUANTISE):
            replaced.enter_context(in_place_of(there, _DEQUANTISE, partial(_of_diffusers, recorder)))
        yield


def _of_diffusers(recorder: Recorder, original: Any, tensor: Any) -> Any:
    """diffusers' dequantising: it computes in float16, the dtype of the blocks' scales, and returns that."""
    if recorder.in_leaf or not isinstance(tensor, torch.Tensor) or not is_of_blocks(tensor):
        return original(tensor)
    return values_of(recorder, tensor, torch.float32 if kind_of(tensor) == _WIDE else torch.float16, torch.float16)


def values_of(recorder: Recorder, tensor: torch.Tensor, dtype: torch.dtype, computed_in: torch.dtype) -> torch.Tensor:
    """The values of a weight for which :func:`is_of_blocks` is true, by an op that can be recorded.

    Args:
        recorder: of the call.
        tensor: the weight.
        dtype: of the result.
        computed_in: what the blocks' numbers and scales are multiplied in.
    """
    kind, data = kind_of(tensor), bytes_of(tensor)
    if kind is None:
        return data.to(dtype)
    return recorder.run(dequantise_blocks, data, kind, shape_of(tensor), dtype, computed_in)
