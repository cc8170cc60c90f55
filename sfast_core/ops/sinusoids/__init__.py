"""The sinusoids by which a timestep or a size becomes a vector."""

from __future__ import annotations

import torch

from ..needs import FLOATS, Needs
from ..spec import Impl, Op
from .reference import sinusoids

__all__ = ["OP", "sinusoids"]

OP = Op(
    name="sinusoids",
    reference=sinusoids,
    impls=(Impl("cuda", needs=Needs(dtypes=(*FLOATS, torch.int64), extension="sfast_device_status")),),
    optional=True,
)
