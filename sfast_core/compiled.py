"""``compile``: a module's forward hot-patched on the instance, and taken off again."""

from __future__ import annotations

import functools
import inspect
import weakref
from types import MethodType
from typing import Any

import torch

from .ahead import prepare
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

    def __reduce__(self) -> Any:
        """A copy of the handle is a copy of the module, uncompiled."""
        return _itself, (self.module,)

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
    if isinstance(module, CompiledModule) or (isinstance(module, torch.nn.Module) and _installed(module)):
        raise ValueError("compile(module): got a module that is compiled already; call uninstall() on it first")
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"compile(module): got a {type(module).__name__}, needs a torch.nn.Module")
    if config is not None and not isinstance(config, CompileConfig):
        raise TypeError(f"compile(config): got a {type(config).__name__}, needs a CompileConfig or None")
    prepare()
    engine = Engine(name or type(module).__name__, config or CompileConfig())
    before = module.__dict__.get("forward")
    forward = _FastForward(module, engine, None if isinstance(before, _OwnForward) else before)
    module.__dict__[_MARK] = module.__dict__["forward"] = forward
    return CompiledModule(module, engine)


def uninstall(module: torch.nn.Module) -> None:
    """Undo :func:`compile`. A module that isn't compiled stays as it is."""
    forward = _installed(module)
    if forward is None:
        return
    del module.__dict__[_MARK]
    if forward.before is None:
        module.__dict__.pop("forward", None)
    else:
        module.__dict__["forward"] = forward.before
    forward.engine.restore()
    forward.engine.reset()


def _installed(module: torch.nn.Module) -> _FastForward | None:
    forward = module.__dict__.get(_MARK)
    return forward if isinstance(forward, _FastForward) else None


class _OwnForward:
    """The forward of a module's class, as an attribute of the module: what a copy of a compiled module has.

    It holds the module weakly: a module with it is freed like any other.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = weakref.ref(module)
        functools.update_wrapper(self, type(module).forward)

    @property
    def __signature__(self) -> inspect.Signature:
        own = inspect.signature(type(self._alive()).forward)
        return own.replace(parameters=list(own.parameters.values())[1:])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module = self._alive()
        return type(module).forward(module, *args, **kwargs)

    def __reduce__(self) -> Any:
        return _OwnForward, (self._alive(),)

    def _alive(self) -> torch.nn.Module:
        module = self._module()
        if module is None:
            raise ReferenceError("the compiled module is gone")
        return module


class _FastForward(_OwnForward):
    """The forward of a compiled module. ``before`` is an instance-level forward that was there, or None."""

    def __init__(self, module: torch.nn.Module, engine: Engine, before: Forward | None) -> None:
        super().__init__(module)
        self.engine = engine
        self.before = before

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module = self._alive()
        original = self.before if self.before is not None else MethodType(type(module).forward, module)
        return self.engine.call(module, original, args, kwargs)

    def __reduce__(self) -> Any:
        """For ``copy.deepcopy`` and ``pickle``: the copy's forward is its own, and uncompiled."""
        return (_OwnForward, (self._alive(),)) if self.before is None else (_itself, (self.before,))


def _itself(thing: Any) -> Any:
    return thing
