"""Softmax attention by whichever exact backend is fastest for the shape."""

from __future__ import annotations

from ..spec import Impl, Op
from .reference import attention

__all__ = ["OP", "attention"]

OP = Op(
    name="attention",
    reference=attention,
    impls=(
        Impl("triton_cross", ".triton_cross_impl", __package__),
        Impl("cudnn", ".cudnn_impl", __package__),
        Impl("flash", ".flash_impl", __package__),
        Impl("xformers", ".xformers_impl", __package__),
        Impl("efficient", ".efficient_impl", __package__),
    ),
    measured=True,
)
