"""PyTorch's layers of transformers, which have a faster way where nobody watches functions of tensors.

Both ways compute the same, but not where a mask leaves a row with nothing to attend to, or where what is padding is
left out, and not where somebody has given a layer another activation than the one it was made with, at which the fast
one doesn't look. What an attention returns lies otherwise in memory, too. In such calls these layers run as they are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import MultiheadAttention, TransformerEncoder, TransformerEncoderLayer
from torch.nn import functional as F

from .fake_tensors import leaves

PADDED = "how much of its input is padding is read at each call"
_OF_ATTENTION = ("query", "key", "value")
_RELU, _GELU = 1, 2  # as such a layer notes which one it was made with; 0 for others, which have no fast way


def has_fast_way(module: torch.nn.Module) -> bool:
    """Whether a module is a layer of PyTorch's that has a faster way."""
    return isinstance(module, (MultiheadAttention, TransformerEncoder, TransformerEncoderLayer))


def tells_ways_apart(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether such a layer may go its fast way with these arguments, and gives something else there."""
    if module.training or not torch.backends.mha.get_fastpath_enabled() or torch.is_grad_enabled():
        return False
    if any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):
        return False
    if isinstance(module, MultiheadAttention):
        given = dict(zip(_OF_ATTENTION, args, strict=False)) | kwargs
        of_itself = given.get("query") is given.get("key") is given.get("value")
        masks = leaves((args[3:], [value for name, value in kwargs.items() if name not in _OF_ATTENTION]), torch.Tensor)
        return module.batch_first and of_itself and not any(map(torch.is_floating_point, masks))
    layers = module.layers if isinstance(module, TransformerEncoder) else [module]
    return len(leaves((args, kwargs), torch.Tensor)) > 1 or any(map(_has_another_activation, layers))


def _has_another_activation(layer: torch.nn.Module) -> bool:
    noted = getattr(layer, "activation_relu_or_gelu", 0)
    return noted != 0 and noted != _which(layer.activation)


def _which(activation: object) -> int:
    if activation is F.relu or isinstance(activation, torch.nn.ReLU):
        return _RELU
    is_gelu = activation is F.gelu or (isinstance(activation, torch.nn.GELU) and activation.approximate == "none")
    return _GELU if is_gelu else 0
