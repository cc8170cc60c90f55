"""``compile`` puts a fast forward on a module's instance, ``uninstall`` takes it off again."""

from __future__ import annotations

import contextlib
import copy
import logging
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from .config import CompileConfig
from .engine import Engine
from .fast_forward import FastForward, as_it_is, forward_of, put_on, take_off
from .libraries import known_layers
from .machine.ahead import prepare
from .reporting.report import Report, versions

log = logging.getLogger("fast_compile")
_METHODS = {"encode": "encoder", "decode": "decoder"}  #: an autoencoder's methods, and the submodules that they call


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

    def __repr__(self) -> str:
        return f"<CompiledModule {self.engine.report.name}: {self.engine.report.verdict()}>"

    def __copy__(self) -> torch.nn.Module:
        """A copy of the handle is a copy of the module, uncompiled."""
        return copy.copy(self.module)

    def __reduce__(self) -> Any:
        """What ``copy.deepcopy`` and ``pickle`` make of the handle is the module, uncompiled."""
        return as_it_is(self.module)

    def report(self) -> Report:
        """What was fused, how calls ran, and why not faster where they weren't."""
        return Report([self.engine.report], versions())

    @contextlib.contextmanager
    def sampling(self, steps: int | None = None) -> Iterator[None]:
        """A promise for the calls inside ``with handle.sampling():`` that makes models partly in main memory faster.

        It promises that nobody writes to a weight that is in main memory until the block ends; such weights may still
        be moved or replaced. So copies of as many of them as fit stay on the device from call to call. Without the
        promise all of them are copied at each call.

        Args:
            steps: how many calls with the same signature there will be, where that is known. The quality part "reuse"
                needs it.
        """
        self.engine.store.begin_sampling(steps)
        try:
            yield
        finally:
            self.engine.store.end_sampling()

    def uninstall(self) -> torch.nn.Module:
        """Give the module back with its own forward and its weights laid out as they were."""
        uninstall(self.module)
        return self.module


def compile(
    module: torch.nn.Module,
    config: CompileConfig | None = None,
    name: str | None = None,
    devices: str | int | Sequence[str] | None = None,
) -> CompiledModule:
    """Make ``module``'s forward fast. The first call traces, later ones replay; what can't be traced runs as before.

    A module that is compiled already, or its handle, gives the same handle. Where ``config`` is another one, the next
    call traces anew.

    Args:
        module: any module whose forward takes tensors, numbers and containers of them.
        config: None for the defaults, or for what a module that is compiled already has.
        name: for the report. None: the class's name, or what a module that is compiled already has.
        devices: replaces the config's field of this name. None: the config's own.

    Raises:
        TypeError: ``module`` is no ``torch.nn.Module``, or is one of TorchScript's. For a pipeline there is
        :func:`compile_pipeline`.
    """
    if isinstance(module, CompiledModule):
        module = module.module
    if not isinstance(module, torch.nn.Module) or isinstance(module, torch.jit.ScriptModule):
        instead = ": for a pipeline there is sfast_core.compile_pipeline" if _is_pipeline(module) else ""
        raise TypeError(
            f"compile(module): got {described(module)}, needs a torch.nn.Module whose forward is Python's{instead}"
        )
    if config is not None and not isinstance(config, CompileConfig):
        raise TypeError(f"compile(config): got {described(config)}, needs a CompileConfig or None")
    there = forward_of(module)
    if devices is not None:
        before = there.engine.config if there is not None else CompileConfig()
        config = (config or before).replace(devices=devices)
    if there is not None:
        there.engine.configure(config, name)
        return _handle(module, there)
    _say_what_goes_past(module)
    prepare()
    engine = Engine(name or type(module).__name__, config or CompileConfig(), known_layers)
    return _handle(module, put_on(module, engine))


def _handle(module: torch.nn.Module, forward: FastForward) -> CompiledModule:
    """The module's handle, made anew if nobody has it any more."""
    handle: CompiledModule | None = forward.handle() if forward.handle is not None else None
    if handle is None:
        handle = CompiledModule(module, forward.engine)
        forward.handle = weakref.ref(handle)
    return handle


def _say_what_goes_past(module: torch.nn.Module) -> None:
    """Warn of methods such as an autoencoder's ``decode``, which don't call the forward that is compiled here."""
    halves = [
        (method, half)
        for method, half in _METHODS.items()
        if callable(getattr(module, method, None)) and isinstance(getattr(module, half, None), torch.nn.Module)
    ]
    if halves:
        several = len(halves) > 1
        log.warning(
            "Fast Compile: %s of this %s %s past its forward, which alone is compiled here: %s %s fast",
            " and ".join(f"{method}()" for method, _ in halves),
            type(module).__name__,
            "go" if several else "goes",
            " and ".join(f"compile(module.{half})" for _, half in halves),
            "make them" if several else "makes it",
        )


def _is_pipeline(thing: Any) -> bool:
    """Whether it is one of diffusers'."""
    return any(base.__name__ == "DiffusionPipeline" for base in thing.__class__.__mro__)


def described(value: Any) -> str:
    """What a value is, for an error: "an int", "the class Linear"."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def uninstall(module: torch.nn.Module | CompiledModule) -> None:
    """Undo :func:`compile`. A module that isn't compiled stays as it is.

    Where somebody has replaced our forward by one of theirs, theirs stays; if it calls ours, that runs the module's own
    forward from now on.

    Args:
        module: the module, or its handle.

    Raises:
        TypeError: ``module`` is no ``torch.nn.Module``. A compiled pipeline has a method ``uninstall()``.
    """
    if isinstance(module, CompiledModule):
        module = module.module
    if not isinstance(module, torch.nn.Module):
        instead = ": a compiled pipeline has a method uninstall()" if _is_pipeline(module) else ""
        raise TypeError(f"uninstall(module): got {described(module)}, needs a torch.nn.Module{instead}")
    take_off(module)


def is_compiled(module: torch.nn.Module) -> bool:
    """Whether :func:`compile` was called on this very module, and nothing has undone it."""
    return forward_of(module) is not None
