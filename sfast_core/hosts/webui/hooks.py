"""A forward of our own on one module, put on and taken off again as if it had never been there."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

Call = Callable[[torch.nn.Module, Callable[..., Any], "str | None", tuple[Any, ...], dict[str, Any]], Any]


class Hook:
    """An instance-level ``forward`` on a module. One hook serves one installation.

    Args:
        module: whose forward is replaced. Held weakly.
        call: gets the module, the forward that was there, why that one must not be traced (or None), and the call's arguments.
    """

    def __init__(self, module: torch.nn.Module, call: Call) -> None:
        self._module = weakref.ref(module)
        self._before = module.__dict__.get("forward")
        original = module.forward
        foreign = None if _is_own(module, self._before) else f"another extension replaces its forward ({_name(self._before)})"

        def forward(*args: Any, **kwargs: Any) -> Any:
            return call(module, original, foreign, args, kwargs)

        self._forward = weakref.ref(forward)  # it holds the module
        module.__dict__["forward"] = forward

    @property
    def module(self) -> torch.nn.Module | None:
        """The module, or None where it is gone."""
        return self._module()

    def remove(self) -> None:
        """Put back the very forward that was there. Does nothing a second time, nor where somebody has replaced ours meanwhile."""
        module, forward, before = self._module(), self._forward(), self._before
        self._before = None
        if module is None or forward is None or module.__dict__.get("forward") is not forward:
            return
        if before is None:
            del module.__dict__["forward"]
        else:
            module.__dict__["forward"] = before


def _is_own(module: torch.nn.Module, forward: Any) -> bool:
    """Whether an instance-level forward is none, or just the class's own, as some extensions leave it behind."""
    own = type(module).forward
    return forward is None or (getattr(forward, "__self__", None) is module and getattr(forward, "__func__", None) is own)


def _name(function: Any) -> str:
    return str(getattr(function, "__module__", "") or type(function).__module__).partition(".")[0]
