"""diffusers' own kind of hooks, which wrap a module's forward and aren't PyTorch's hooks."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch


def hooks_on(module: torch.nn.Module) -> Collection[Any]:
    """The hooks of a module."""
    hooks = getattr(module.__dict__.get("_diffusers_hook"), "hooks", None)
    return hooks.values() if isinstance(hooks, dict) else ()


def keeps_state(module: torch.nn.Module) -> bool:
    """Whether one of them is a cache, whose results depend on earlier steps and not on the arguments alone."""
    return any(getattr(hook, "_is_stateful", False) for hook in hooks_on(module))
