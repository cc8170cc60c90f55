"""A small class of quantised tensors, as libraries have theirs: numbers of 8 bits and a scale, which compute behind the
dispatcher.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

aten = torch.ops.aten


@dataclass(frozen=True)
class Params:
    scale: torch.Tensor
    dtype: torch.dtype
    halved: bool = False


class Quantised(torch.Tensor):
    """``data * scale`` in ``dtype``; half of that where it is ``halved``."""

    @staticmethod
    def __new__(cls, data: torch.Tensor, params: Params) -> Quantised:
        whole: Quantised = torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=params.dtype, device=data.device)
        whole._data, whole._params = data, params
        return whole

    _data: torch.Tensor
    _params: Params

    @classmethod
    def of(cls, values: torch.Tensor, halved: bool = False) -> Quantised:
        scale = values.abs().amax(1, keepdim=True).float() / 127
        return cls((values / scale).round().to(torch.int8), Params(scale, values.dtype, halved))

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"Quantised({list(self.shape)})"

    def dequantised(self) -> torch.Tensor:
        values = (self._data.float() * self._params.scale).to(self._params.dtype)
        return values / 2 if self._params.halved else values

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        self._scale = self._params.scale  # as comfy-kitchen's does
        return ["_data", "_scale"], (self._params.dtype, self._params.halved)

    @staticmethod
    def __tensor_unflatten__(parts: dict[str, torch.Tensor], context: Any, size: Any, stride: Any) -> Quantised:
        return Quantised(parts["_data"], Params(parts["_scale"], *context))

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        first = args[0]
        if func is aten.detach.default:
            return type(first)(first._data.detach(), first._params)
        if func is aten.clone.default:
            return Quantised(first._data.clone(), replace(first._params, scale=first._params.scale.clone()))
        if func is aten.t.default:
            return _Turned(first)
        if func is aten.copy_.default:
            first._data.copy_(args[1]._data)
            first._params.scale.copy_(args[1]._params.scale)
            return first
        values = [arg.dequantised() if isinstance(arg, Quantised) else arg for arg in args]
        return func(*values, **(kwargs or {}))


class _Turned(Quantised):
    """The transposed of one, which knows its product."""

    @staticmethod
    def __new__(cls, of: Quantised) -> _Turned:
        whole: _Turned = torch.Tensor._make_wrapper_subclass(cls, of.shape[::-1], dtype=of.dtype, device=of.device)
        whole._data, whole._params = of._data, of._params
        return whole

    def dequantised(self) -> torch.Tensor:
        return Quantised.dequantised(self).t()


def quantise(module: nn.Module, **how: Any) -> nn.Module:
    """The module with the weights of its linear layers quantised."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            layer.weight = nn.Parameter(Quantised.of(layer.weight.detach(), **how), requires_grad=False)
    return module
