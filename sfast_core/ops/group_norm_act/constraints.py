"""Reasons that the impls of group_norm_act share."""

from __future__ import annotations

from ..spec import Arguments
from .reference import ACTS, channels_of


def why_not_arguments(call: Arguments) -> str | None:
    """The reason why no kernel computes this, or None."""
    if call.num_groups <= 0 or channels_of(call.x, call.tail) % call.num_groups:
        return f"{channels_of(call.x, call.tail)} channels are not a multiple of {call.num_groups} groups"
    if call.tail is not None and call.tail.dtype != call.x.dtype:
        return "tail and x differ in dtype"
    return None if call.act in ACTS else f"act {call.act!r} is not supported"
