"""Layers that take the columns with outliers out of their input, and multiply these in 16 bits: bitsandbytes'
LLM.int8().

Which columns those are, and how many, is asked at each call of the values, so that no graph can hold such a layer. It
is one that runs as it is.
"""

from __future__ import annotations

import torch

_LAYER = "Linear8bitLt"
REASON = "which columns of its input have outliers is read at each call"


def looks_for_outliers(module: torch.nn.Module) -> bool:
    """Whether a module is such a layer. With a threshold of 0 it computes with all of its input in 8 bits."""
    state = vars(module).get("state")  # of thousands of layers, nearly none has one
    return (
        state is not None
        and any(cls.__name__ == _LAYER for cls in type(module).__mro__)
        and getattr(state, "threshold", 0) > 0
    )
