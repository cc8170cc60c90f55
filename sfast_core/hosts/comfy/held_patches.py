"""LoRAs of a model that is partly in main memory, with their matrices on the device: what a graph that computes them
may read.

ComfyUI adds such a LoRA at each use, and brings its matrices for that from memory that isn't pinned, which a graph
can't repeat. Its own function has a way to be handed matrices that are there already, which its prefetching is for: by
that we keep them there, as long as the function is the model's.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...weights import Held
from ...weights.offload import Computed

_FREE_PART = 8  # of what is free, matrices may take the part of one in so many
_UNKNOWN_BYTES = 1 << 30  # where it isn't known what is free


class HeldPatches:
    """For the functions of one model. Not thread-safe: its caller holds the device's lock."""

    def __init__(self) -> None:
        self._held: weakref.WeakKeyDictionary[Any, tuple[torch.device, list[Any], Held, int]] = (
            weakref.WeakKeyDictionary()
        )

    def held(self, functions: tuple[Computed, ...], device: torch.device) -> tuple[Computed, ...]:
        """The host's functions with their matrices on ``device``; as they are where there is no room for these, or no
        such way in this version.
        """
        found = [self._of(function, device) for function in functions]
        return functions if None in found else tuple(each for each in found if each is not None)

    def _of(self, patch: Any, device: torch.device) -> Held | None:
        """A function of the host's with its matrices on ``device``, made anew where it adds other matrices by now. None
        where there is no room for these, or no such way in this version.
        """
        adds = _adds(patch)
        if adds is None:
            return None
        known = self._held.get(patch)
        if known is not None and known[0] == device and _same(known[1], adds):
            return known[2]
        self._held.pop(patch, None)
        size = patch.memory_required()
        if size + sum(entry[3] for entry in self._held.values()) > self._room(device):
            return None
        with torch.inference_mode(False), torch.no_grad():
            memory = torch.empty(size, dtype=torch.uint8, device=device)
            prepared = patch.prepare(memory, None, copy=True, commit=False)
        other = type(patch)(patch.key, {patch.key: prepared}, patch.convert_func, patch.set_func)
        self._held[patch] = device, list(adds), Held(other), size
        return self._held[patch][2]

    def _room(self, device: torch.device) -> int:
        held = sum(entry[3] for entry in self._held.values())
        return (torch.cuda.mem_get_info(device)[0] + held) // _FREE_PART if device.type == "cuda" else _UNKNOWN_BYTES


def _adds(patch: Any) -> list[Any] | None:
    """What a function adds to its weight; None where it isn't known how it is handed anything."""
    if not all(
        hasattr(patch, name) for name in ("memory_required", "prepare", "patches", "key", "convert_func", "set_func")
    ):
        return None
    found: list[Any] | None = patch.patches.get(patch.key)
    return found


def watch_added(functions: Sequence[Computed]) -> Callable[[], bool]:
    """A function that tells whether these still add what they add now."""
    found = [(patch, list(adds)) for patch in functions if (adds := _adds(patch)) is not None]
    return lambda: all(_same(then, _adds(patch) or []) for patch, then in found)


def _same(then: list[Any], now: list[Any]) -> bool:
    return len(then) == len(now) and all(map(operator.is_, then, now))
