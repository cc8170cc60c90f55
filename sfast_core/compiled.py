"""``compile``: a module's forward hot-patched on the instance, and taken off again."""

from __future__ import annotations

import functools
import weakref
from typing import Any

import torch

from .config import CompileConfig
from .engine import Engine, Forward
from .report import Report, versions

_MARK = "_fast_compile_engine"


class CompiledModule:
    """A compiled module's handle: call it, read its attributes, ask for its report, uninstall it.

    The module itself is the same object as before, with an instance-level ``forward``; it may be used directly too.
    """

    def __init__(self, module: torch.nn.Module, engine: Engine) -> None:
        self.module = module
        self.engine = engine

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["module"], name)

    def report(self) -> Report:
        """What was fused, how calls ran, and why not faster where they weren't."""
        return Report([self.engine.report], versions())

    def uninstall(self) -> torch.nn.Module:
        """Give the module back with its own forward and its weights laid out as they were."""
        uninstall(self.module)
        return self.module


def compile(module: torch.nn.Module, config: CompileConfig | None = None, name: str | None = None) -> CompiledModule:
    """Make ``module``'s forward fast. The first call traces, later ones replay; what can't be traced runs as before.

    Args:
        module: any module whose forward takes tensors, numbers and containers of them.
        config: None for the defaults.
        name: for the report; None takes the class's name.

    Raises:
        TypeError: ``module`` is no ``torch.nn.Module``.
        ValueError: it is compiled already.
    """
    if isinstance(module, CompiledModule) or (isinstance(module, torch.nn.Module) and _MARK in module.__dict__):
        raise ValueError("compile(module): got a module that is compiled already; call uninstall() on it first")
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"compile(module): got a {type(module).__name__}, needs a torch.nn.Module")
    if config is not None and not isinstance(config, CompileConfig):
        raise TypeError(f"compile(config): got a {type(config).__name__}, needs a CompileConfig or None")
    engine = Engine(module, name or type(module).__name__, config or CompileConfig())
    before = module.__dict__.get("forward")
    module.__dict__[_MARK] = (engine, before)
    module.__dict__["forward"] = _patched(module, engine, before)
    return CompiledModule(module, engine)


def uninstall(module: torch.nn.Module) -> None:
    """Undo :func:`compile`. A module that isn't compiled stays as it is."""
    installed = module.__dict__.pop(_MARK, None)
    if installed is None:
        return
    engine, before = installed
    if before is None:
        module.__dict__.pop("forward", None)
    else:
        module.__dict__["forward"] = before
    engine.restore()
    engine.reset()


def _patched(module: torch.nn.Module, engine: Engine, before: Forward | None) -> Forward:
    """The forward to install. It holds the module weakly: a patched module is freed like any other."""
    alive = weakref.ref(module)

    @functools.wraps(type(module).forward)
    def forward(*args: Any, **kwargs: Any) -> Any:
        owner = alive()
        if owner is None:
            raise ReferenceError("the compiled module is gone")
        original = before if before is not None else functools.partial(type(owner).forward, owner)
        return engine.call(owner, original, args, kwargs)

    return forward
