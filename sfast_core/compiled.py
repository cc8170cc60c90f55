"""``compile`` puts a fast forward on a module's instance, ``uninstall`` takes it off again."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import logging
import operator
import sys
import weakref
from collections.abc import Iterator, Sequence
from types import MethodType
from typing import Any

import torch

from .config import CompileConfig
from .engine import Engine, Forward
from .libraries import Collectors, known_layers
from .machine.ahead import prepare
from .reporting.report import Report, versions
from .state import StatefulCalls, has_state

log = logging.getLogger("fast_compile")
MARK = "_fast_compile_engine"
_OF_FUNCTIONS = frozenset({"__code__", "__defaults__", "__kwdefaults__"})  #: what torch.export reads of a forward
#: the method by which transformers' generate() gets the model from torch.compile where its cache is static
_COMPILED_CALL = "get_compiled_call"
_METHODS = {"encode": "encoder", "decode": "decoder"}  #: an autoencoder's methods, and the submodules that they call
_SCRIPTED = "__globals__"  #: what TorchScript reads of a forward first


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
        return _as_it_is(self.module)

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
    there = _installed(module)
    if devices is not None:
        before = there.engine.config if there is not None else CompileConfig()
        config = (config or before).replace(devices=devices)
    if there is not None:
        there.engine.configure(config, name)
        return there.handle(module)
    _say_what_goes_past(module)
    prepare()
    forward = _FastForward(
        module, Engine(name or type(module).__name__, config or CompileConfig(), known_layers), _before(module)
    )
    module.__dict__[MARK] = module.__dict__["forward"] = forward
    if callable(getattr(type(module), _COMPILED_CALL, None)) and _COMPILED_CALL not in module.__dict__:
        module.__dict__[_COMPILED_CALL] = _CompiledCall(module)
    return forward.handle(module)


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
    forward = _installed(module)
    if forward is None:
        return
    forward.installed = False
    del module.__dict__[MARK]
    if isinstance(module.__dict__.get(_COMPILED_CALL), _CompiledCall):
        del module.__dict__[_COMPILED_CALL]
    if module.__dict__.get("forward") is forward:
        _put_back(module, forward.before)
    forward.give_back()


def is_compiled(module: torch.nn.Module) -> bool:
    """Whether :func:`compile` was called on this very module, and nothing has undone it."""
    return _installed(module) is not None


def _installed(module: torch.nn.Module) -> _FastForward | None:
    """Our forward on this very module, or None.

    A shallow copy of a compiled module has the original's forward in its dict: that isn't its own.
    """
    forward = module.__dict__.get(MARK)
    return forward if isinstance(forward, _FastForward) and forward.installed and forward.is_of(module) else None


def _before(module: torch.nn.Module) -> Forward | None:
    """The instance-level forward that ours replaces. None where the class's own, or one of ours, is there."""
    before = module.__dict__.get("forward")
    while isinstance(before, _OwnForward):
        before = before.before
    own = getattr(before, "__self__", None) is module and getattr(before, "__func__", None) is getattr(
        type(module), "forward", None
    )
    return None if own else before


def _put_back(module: torch.nn.Module, before: Forward | None) -> None:
    if before is None:
        module.__dict__.pop("forward", None)
    else:
        module.__dict__["forward"] = before


class _OwnForward:
    """The forward of a module's class as an attribute of the instance. A deep copy of a compiled module gets this one.

    It refers to the module weakly, so that there is no cycle and the module is freed like any other.
    """

    before: Forward | None = None

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = weakref.ref(module)
        functools.update_wrapper(self, type(module).forward)

    @property
    def __signature__(self) -> inspect.Signature:
        own = inspect.signature(type(self.alive()).forward)
        return own.replace(parameters=list(own.parameters.values())[1:])

    def __getattr__(self, name: str) -> Any:
        if name in _OF_FUNCTIONS:
            return getattr(type(self.alive()).forward, name)
        if name == _SCRIPTED:
            raise AttributeError(
                f"torch.jit.script can't read the forward of a compiled {type(self.alive()).__name__}: call uninstall()"
                " on it first, or use torch.jit.trace"
            )
        raise AttributeError(f"{type(self).__name__} has no attribute {name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module = _called_on(sys._getframe(1), self)
        return type(module).forward(module, *args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """The copied module has its own forward, uncompiled. A forward copied without its module keeps the copy of the
        module alive, as a bound method does.
        """
        if self.before is not None:
            return copy.deepcopy(self.before, memo)
        alone = id(self.alive()) not in memo
        module = copy.deepcopy(self.alive(), memo)
        return MethodType(type(module).forward, module) if alone else _OwnForward(module)

    def __reduce__(self) -> Any:
        """What ``pickle`` writes is the module's own forward, which can be read without this package."""
        return (getattr, (self.alive(), "forward")) if self.before is None else _as_it_is(self.before)

    def is_of(self, module: torch.nn.Module) -> bool:
        """Whether it was made for this module."""
        return self._module() is module

    def alive(self) -> torch.nn.Module:
        """The module.

        Raises:
            ReferenceError: it is gone.
        """
        module = self._module()
        if module is None:
            raise ReferenceError("the compiled module is gone")
        return module


class _FastForward(_OwnForward):
    """The forward of a compiled module.

    Attributes:
        before: the instance-level forward that it replaced, or None.
        installed: False once it is uninstalled. Somebody may have kept it and still call it: then it runs the forward
            that it replaced.
    """

    def __init__(self, module: torch.nn.Module, engine: Engine, before: Forward | None) -> None:
        super().__init__(module)
        self.engine = engine
        self.before = before
        self.installed = True
        self._handle: weakref.ref[CompiledModule] | None = None
        self._stateful = StatefulCalls() if has_state(before or type(module).forward) else None
        self._collectors = Collectors(module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # Dynamo traces this very function
            return self._original(self.alive())(*args, **kwargs)
        module = _called_on(sys._getframe(1), self)
        original = self._original(module)
        if not self.installed or not self.is_of(module):
            return original(*args, **kwargs)
        self._collectors.get_ready(kwargs)
        try:
            if self._stateful is not None:
                return self._stateful.call(self.engine, module, original, args, kwargs)
            return self.engine.call(module, original, args, kwargs)
        finally:
            if not self.installed:  # meanwhile: the call may have laid weights out once more
                self.give_back()

    def handle(self, module: torch.nn.Module) -> CompiledModule:
        """The module's handle, made anew if nobody has it any more. It is kept weakly, since it holds the module."""
        handle = self._handle() if self._handle is not None else None
        if handle is None:
            handle = CompiledModule(module, self.engine)
            self._handle = weakref.ref(handle)
        return handle

    def give_back(self) -> None:
        """Undo what calls have done to the weights, and forget what they have made."""
        self.engine.restore()
        self.engine.reset()

    def _original(self, module: torch.nn.Module) -> Forward:
        return self.before if self.before is not None else functools.partial(type(module).forward, module)


class _CompiledCall:
    """What a compiled module of transformers' says where it is asked for what torch.compile makes of it: itself, of the
    two compilers one.

    It holds the module weakly. A copy's is as its class has it.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = weakref.ref(module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module = self._module()
        if module is None:
            raise ReferenceError("the compiled module is gone")
        return (
            module.__call__ if is_compiled(module) else getattr(type(module), _COMPILED_CALL)(module, *args, **kwargs)
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return _CompiledCall(copy.deepcopy(self._module(), memo))  # type: ignore[arg-type]

    def __reduce__(self) -> Any:
        return getattr, (self._module(), _COMPILED_CALL)


def _called_on(caller: Any, forward: _OwnForward) -> torch.nn.Module:
    """The module that is called: a shallow copy has the forward of the other one, so it is whose ``__call__`` the
    caller's frame belongs to.
    """
    if caller.f_globals is vars(torch.nn.modules.module):
        module = caller.f_locals.get("self")
        if isinstance(module, torch.nn.Module) and module.__dict__.get(MARK) is forward:
            return module
    return forward.alive()


def _as_it_is(thing: Any) -> Any:
    """How something is copied and pickled in the place of something else."""
    return operator.getitem, ([thing], 0)
