"""PyTorch's layers of transformers, which have a faster way where nobody watches functions of tensors.

Both ways compute the same, unless somebody has given such a layer another activation than the one it was made with: the
fast one doesn't look at it.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

OTHERWISE = "a TransformerEncoderLayer was given another activation than the one that it was made with"
_RELU, _GELU = 1, 2  # as such a layer notes which one it was made with; 0 for others, which have no fast way


def computes_otherwise(module: torch.nn.Module) -> bool:
    """Whether this is such a layer, that computes something else where it is watched."""
    if not isinstance(module, torch.nn.TransformerEncoderLayer):
        return False
    noted: int = module.activation_relu_or_gelu
    return noted != 0 and noted != _which(module.activation)


def _which(activation: object) -> int:
    if activation is F.relu or isinstance(activation, torch.nn.ReLU):
        return _RELU
    is_gelu = activation is F.gelu or (isinstance(activation, torch.nn.GELU) and activation.approximate == "none")
    return _GELU if is_gelu else 0
