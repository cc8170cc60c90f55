"""Layers whose weights are stored in fewer bits than they compute in, as by diffusers' ``enable_layerwise_casting``.

A hook casts a layer's tensors before each of its calls, by ``layer.to(dtype)``, and back after it. Nothing of that is
left when the call is over, so a trace has the tensors as they are stored, and the casts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..capture import Recorder, in_place_of


@contextmanager
def casts_recorded(recorder: Recorder) -> Iterator[None]:
    """A context in which such casts are recorded. Each layer always ends up with the tensors it would have had."""
    cast = _Cast(recorder)
    try:
        with in_place_of(torch.nn.Module, "to", cast.to):
            yield
    finally:
        cast.leave()


class _Cast:
    """The layers whose tensors are cast at the moment.

    Args:
        recorder: of the call.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._layers: dict[
            int, tuple[torch.nn.Module, torch.dtype, torch.dtype, list[tuple[dict[str, Any], str, torch.Tensor]]]
        ] = {}

    def to(self, original: Any, layer: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
        """Stands for ``layer.to``. If that only casts, cast tensors are put into the layer, and its parameters stay."""
        dtype = None
        if len(args) == 1 and not kwargs:
            dtype = args[0]
        elif not args and set(kwargs) <= {"dtype", "non_blocking"}:
            dtype = kwargs.get("dtype")
        if self._recorder.in_leaf or not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            self._end(layer)
            return original(layer, *args, **kwargs)
        if (found := self._layers.get(id(layer))) is not None and found[1] == dtype:
            self._end(layer)
            return layer
        rows = [
            row for below in layer.modules() for table in (below._parameters, below._buffers) for row in _floats(table)
        ]
        lying = {tensor.dtype for _, _, tensor in rows}
        if found is not None or len(lying) != 1 or lying == {dtype}:
            self._end(layer)
            return original(layer, *args, **kwargs)
        self._layers[id(layer)] = layer, lying.pop(), dtype, rows
        with torch.no_grad():
            for table, name, tensor in rows:
                table[name] = tensor.to(dtype)
        return layer

    def _end(self, layer: torch.nn.Module) -> None:
        _, _, _, rows = self._layers.pop(id(layer), (None, None, None, ()))
        for table, name, tensor in rows:
            table[name] = tensor

    def leave(self) -> None:
        """Cast the layers for good that nobody has cast back, as would have happened without us."""
        for layer, _, dtype, _ in list(self._layers.values()):
            self._end(layer)
            layer.to(dtype)
            self._recorder.refuse(f"a {type(layer).__name__} is left with its weights in {dtype}")


def _floats(table: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str, torch.Tensor]]:
    for name, tensor in table.items():
        if tensor is not None and tensor.is_floating_point():
            yield table, name, tensor
