"""ComfyUI-GGUF's layers make their weights of a file's blocks at each call; a trace has that as one op on the bytes.

LoRAs, which the layer adds to the weight at each call, are one op on their matrices: other LoRAs on the same layers are
other values, no other trace. What else it does with the weight is recorded as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

import torch

from ...capture import Recorder, in_place_of
from ...libraries.blocks import values_of
from ...ops.add_low_rank import add_low_rank
from ...weights import WeightRef
from ...weights.added import added_to, form_of, is_added
from ...weights.blocks import bytes_of, is_of_blocks
from ...weights.part import Part

DEQUANTISE = "dequantize_tensor"
BLOCKS = "GGMLTensor"
_LAYER, _WEIGHT = "GGMLLayer", "get_weight"


def loaders_of_blocks() -> list[ModuleType]:
    """The files that have layers such as these: ComfyUI-GGUF's and those of packs that were made from it."""
    return [file for file in list(sys.modules.values()) if {DEQUANTISE, BLOCKS} <= getattr(file, "__dict__", {}).keys()]


@contextmanager
def blocks_of_gguf(recorder: Recorder, unrecorded: Any) -> Iterator[None]:
    """Let such loaders' functions be recorded so, while a call is.

    ``unrecorded``: runs a function without the recorder's seeing it.
    """
    with ExitStack() as replaced:
        for loader in loaders_of_blocks():
            replaced.enter_context(in_place_of(loader, DEQUANTISE, partial(dequantised, recorder)))
            replaced.enter_context(in_place_of(vars(loader)[BLOCKS], "to", partial(unrecorded, recorder)))
            if hasattr(layer := vars(loader).get(_LAYER), _WEIGHT):
                replaced.enter_context(in_place_of(layer, _WEIGHT, partial(_weight, recorder, _Forms())))
        yield


class _Forms:
    """What is added to weights, as far as a trace depends on it: asked of all of them at once.

    Attributes:
        answer: what it was in the recorded call.
    """

    def __init__(self) -> None:
        self.name, self._refs = "what is added", dict[WeightRef, Any]()

    @property
    def answer(self) -> tuple[Any, ...]:
        return tuple(self._refs.values())

    def now(self) -> tuple[Any, ...]:
        """The same at this call."""
        return tuple(form_of(getattr(ref.owner(), ref.name, None)) for ref in self._refs)

    def note(self, recorder: Recorder, ref: WeightRef, whole: torch.Tensor) -> None:
        """A weight that is read."""
        if not self._refs:
            recorder.told.append(self)
        self._refs[ref] = form_of(whole)


def _weight(recorder: Recorder, forms: _Forms, original: Any, layer: Any, tensor: Any, dtype: Any = None) -> Any:
    """What a layer makes of a weight: its values with LoRAs added, if these are plain ones on a weight that lies where
    it is used.
    """
    if (
        recorder.in_leaf
        or not isinstance(tensor, torch.Tensor)
        or not is_of_blocks(tensor)
        or dtype is None
        or layer.patch_dtype is not None
    ):
        return original(layer, tensor, dtype)
    with recorder.paused():
        added, ref = added_to(tensor), recorder.table.find(bytes_of(tensor))
        if ref is not None and (added is not None or not is_added(tensor)):
            forms.note(recorder, ref, tensor)
        else:
            ref = None
    if ref is None:
        return original(layer, tensor, dtype)
    how = layer.dequant_dtype
    values = values_of(recorder, tensor, dtype, dtype if how == "target" else how or torch.float16)
    if added is None:
        return values
    with recorder.paused():
        for name, part in added._asdict().items():
            recorder.name_weight(part, replace(ref, part=Part(tensor, name), others=()))
    return recorder.run(add_low_rank, values, *added)


def dequantised(
    recorder: Recorder, original: Any, tensor: Any, dtype: torch.dtype | None = None, dequant_dtype: Any = None
) -> Any:
    """What ``dequantize_tensor`` returns, bit for bit, by an op that can be recorded.

    Args:
        recorder: of the call.
        original: the loader's function, for what isn't known.
        tensor: a weight or bias.
        dtype: of the result.
        dequant_dtype: what is computed in: a dtype, "target" for the result's, None for that of the blocks' scales,
            float16.
    """
    if recorder.in_leaf or not isinstance(tensor, torch.Tensor) or not is_of_blocks(tensor) or dtype is None:
        return original(tensor, dtype, dequant_dtype)
    return values_of(recorder, tensor, dtype, dtype if dequant_dtype == "target" else dequant_dtype or torch.float16)


def with_patches_on_device(patcher: Any) -> Any:
    """Let a patcher of ComfyUI-GGUF's keep LoRAs on the GPU, as its advanced loader offers: else each call would bring
    them there anew.

    Args:
        patcher: any ModelPatcher that nobody else has yet.

    Returns:
        The same object.
    """
    if hasattr(patcher, "patch_on_device"):
        patcher.patch_on_device = True
    return patcher


def as_plain(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """The memory of a tensor of the loader's class that is what is in it; any other tensor as it is."""
    if tensor is None or type(tensor).__name__ != BLOCKS:
        return tensor
    with torch._C.DisableTorchFunction():
        return torch.Tensor.as_subclass(tensor, torch.Tensor)
