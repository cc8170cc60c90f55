"""What stands in an object's copy where the host keeps a module that nodes share: calls through it run compiled, all
others don't.

A VAE, a CLIP and a ControlNet aren't copied with their modules. So the copy that a node gives out holds a proxy in the
module's place: it is the module for whoever looks at it or changes it, and for the length of a call of one of its
entries the compiled forwards are put below the module. The incoming object calls the module itself. Copies that the
host makes of the copy share the proxy.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch

from ...config import CompileConfig
from .events import status_of_this_node
from .install import state_of
from .obstacles import why_left_alone
from .parts import Part, PartState

log = logging.getLogger("fast_compile")
Parts = Callable[[Any], Iterator[Part]]


class ModuleProxy:
    """Stands for ``module``.

    Args:
        module: the host's. It is held, as the object that holds the proxy would hold it.
        parts: what is compiled below it, asked at each call.
        config: how.
        entries: the names of the methods through which the host runs the module; ``__call__`` for a plain call.
    """

    __slots__ = ("__weakref__", "_fast_config", "_fast_entries", "_fast_module", "_fast_parts", "_fast_status")

    def __init__(self, module: torch.nn.Module, parts: Parts, config: CompileConfig, entries: tuple[str, ...]) -> None:
        for name, value in (("module", module), ("parts", parts), ("config", config), ("entries", entries)):
            object.__setattr__(self, f"_fast_{name}", value)
        object.__setattr__(self, "_fast_status", status_of_this_node())

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The module's class: nodes ask ``isinstance``."""
        return type(self._fast_module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = partial(self._fast_module, *args, **kwargs)
        return through(self, call) if "__call__" in self._fast_entries else call()

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._fast_module, name)
        return partial(_entry, self, value) if name in self._fast_entries else value

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._fast_module, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._fast_module, name)

    def __dir__(self) -> list[str]:
        return dir(self._fast_module)

    def __repr__(self) -> str:
        return repr(self._fast_module)

    def __copy__(self) -> Any:
        """A copy is the module's: uncompiled."""
        return copy.copy(self._fast_module)

    def __deepcopy__(self, memo: Any) -> Any:
        return copy.deepcopy(self._fast_module, memo)

    def __reduce__(self) -> Any:
        return _itself, (self._fast_module,)


def through(proxy: ModuleProxy, call: Callable[[], Any]) -> Any:
    """``call()``, with the compiled forwards below the proxy's module."""
    status = proxy._fast_status
    with ExitStack() as stack:
        if status is not None:
            stack.callback(status.end, always=False)
        for part in _found(proxy):
            state = state_of(part.module, proxy._fast_config, partial(PartState, part, proxy._fast_config))
            if state is None:
                continue
            if status is not None:
                stack.enter_context(status.watching(state.engine))
            if reason := part.left_alone or why_left_alone(part.module, {}):
                call = partial(state.engine.run_eager, reason, call)
            else:
                stack.enter_context(state.installed(part.module))
        return call()


def _found(proxy: ModuleProxy) -> list[Part]:
    try:
        return list(proxy._fast_parts(proxy._fast_module))
    except Exception:  # then it runs as it was
        log.warning("Fast Compile: a %s isn't understood", type(proxy._fast_module).__name__, exc_info=True)
        return []


def behind(module: Any) -> Any:
    """The module that a proxy stands for; any other object as it is."""
    return module._fast_module if type(module) is ModuleProxy else module


def _entry(proxy: ModuleProxy, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return through(proxy, partial(method, *args, **kwargs))


def _itself(module: Any) -> Any:
    return module
