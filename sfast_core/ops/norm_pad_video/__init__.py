"""What stands between two convolutions of a video: norm, modulation, activation, repeated pixels, edges, and the frames
that were kept.
"""

from __future__ import annotations

from ..needs import FLOATS, Needs
from ..spec import Impl, Op
from .reference import norm_pad_video

__all__ = ["OP", "norm_pad_video"]

OP = Op(
    name="norm_pad_video",
    reference=norm_pad_video,
    impls=(Impl("triton", needs=Needs(triton=True, dtypes=FLOATS, dims=5)),),
    optional=True,
    channels_last=True,
)
