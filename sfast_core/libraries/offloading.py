"""diffusers' group offloading, which moves layers' weights to the device before each of their calls, and away again.

A parameter stays the object that it is and only gets other memory, so while a call is recorded the moves needn't be.
After that the weights are where they are kept, programs bring them from there, and none of these hooks runs. Code that
runs live finds its weights in its modules: the groups that were on the device there in the recorded call are brought
around it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch

from ..capture import Recorder, in_place_of
from .hooks import hooks_on

_FILE, _GROUP = "diffusers.hooks.group_offloading", "ModuleGroup"
_MOVES = ("onload_", "offload_")


def offloads(root: torch.nn.Module | None = None) -> bool:
    """Whether group offloading is used in this process, or below ``root``."""
    if getattr(sys.modules.get(_FILE), _GROUP, None) is None:
        return False
    return root is None or any(_has_group(module) for module in root.modules())


def _has_group(module: torch.nn.Module) -> bool:
    return any(type(getattr(hook, "group", None)).__name__ == _GROUP for hook in hooks_on(module))


@contextmanager
def moves_recorded(recorder: Recorder) -> Iterator[None]:
    """A context in which such moves are left out of the record."""
    with ExitStack() as replaced:
        group = getattr(sys.modules.get(_FILE), _GROUP)
        for name in _MOVES:
            if hasattr(group, name):
                replaced.enter_context(in_place_of(group, name, partial(_move, recorder, name)))
        yield


def _move(recorder: Recorder, name: str, move: Any, group: Any) -> Any:
    if recorder.in_leaf:
        return move(group)
    with recorder.paused():
        modules, parameters, buffers = (getattr(group, of, None) or () for of in ("modules", "parameters", "buffers"))
        within = [each for module in modules for each in module.modules()]
        found = [(each._buffers, key, buffer) for each in within for key, buffer in each._buffers.items()]
        of_modules = (tensor for module in modules for tensor in (*module.parameters(), *module.buffers()))
        recorder.let_go([*parameters, *buffers, *of_modules])
        result = move(group)
        for table, key, buffer in found:
            if buffer is not None and (now := table[key]) is not buffer:  # ``Module.to`` has replaced it: no effect
                buffer.data = now.data
                table[key] = buffer
    if name == "onload_":
        recorder.brought[id(group)] = partial(_brought, group)
    else:
        recorder.brought.pop(id(group), None)
    return result


@contextmanager
def _brought(group: Any) -> Iterator[None]:
    """A context in which a group's weights are on the device."""
    group.onload_()
    try:
        yield
    finally:
        group.offload_()
