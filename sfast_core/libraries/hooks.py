"""diffusers' own kind of hooks, which stand around a module's forward and are no hooks of PyTorch's."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch


def hooks_on(module: torch.nn.Module) -> Collection[Any]:
    """Those of a module."""
    hooks = getattr(module.__dict__.get("_diffusers_hook"), "hooks", None)
    return hooks.values() if isinstance(hooks, dict) else ()


def keeps_state(module: torch.nn.Module) -> bool:
    """Whether a cache is around it: what that computes depends on the steps before, not on the arguments alone."""
    return any(getattr(hook, "_is_stateful", False) for hook in hooks_on(module))
