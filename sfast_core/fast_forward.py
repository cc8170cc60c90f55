"""The forward of a compiled module, on the instance: how it is put there and taken off, called, copied and pickled."""

from __future__ import annotations

import copy
import functools
import inspect
import operator
import sys
import weakref
from types import MethodType
from typing import Any

import torch

from .engine import Engine, Forward
from .libraries import Collectors
from .state import StatefulCalls, has_state

MARK = "_fast_compile_engine"
_OF_FUNCTIONS = frozenset({"__code__", "__defaults__", "__kwdefaults__"})  #: what torch.export reads of a forward
#: the method by which transformers' generate() gets the model from torch.compile where its cache is static
_COMPILED_CALL = "get_compiled_call"
_SCRIPTED = "__globals__"  #: what TorchScript reads of a forward first


def put_on(module: torch.nn.Module, engine: Engine) -> FastForward:
    """Give the module a fast forward that calls this engine."""
    forward = FastForward(module, engine, _before(module))
    module.__dict__[MARK] = module.__dict__["forward"] = forward
    if callable(getattr(type(module), _COMPILED_CALL, None)) and _COMPILED_CALL not in module.__dict__:
        module.__dict__[_COMPILED_CALL] = _CompiledCall(module)
    return forward


def take_off(module: torch.nn.Module) -> None:
    """Give the module the forward back that it had, if it has a fast one. A forward that somebody has put there since
    stays; if it calls ours, that runs the module's own from now on.
    """
    forward = forward_of(module)
    if forward is None:
        return
    forward.installed = False
    del module.__dict__[MARK]
    if isinstance(module.__dict__.get(_COMPILED_CALL), _CompiledCall):
        del module.__dict__[_COMPILED_CALL]
    if module.__dict__.get("forward") is forward:
        if forward.before is None:
            del module.__dict__["forward"]
        else:
            module.__dict__["forward"] = forward.before
    forward.give_back()


def forward_of(module: torch.nn.Module) -> FastForward | None:
    """Our forward on this very module, or None.

    A shallow copy of a compiled module has the original's forward in its dict: that isn't its own.
    """
    forward = module.__dict__.get(MARK)
    return forward if isinstance(forward, FastForward) and forward.installed and forward.is_of(module) else None


def _before(module: torch.nn.Module) -> Forward | None:
    """The instance-level forward that ours replaces. None where the class's own, or one of ours, is there."""
    before = module.__dict__.get("forward")
    while isinstance(before, _OwnForward):
        before = before.before
    own = getattr(before, "__self__", None) is module and getattr(before, "__func__", None) is getattr(
        type(module), "forward", None
    )
    return None if own else before


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
        return (getattr, (self.alive(), "forward")) if self.before is None else as_it_is(self.before)

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


class FastForward(_OwnForward):
    """The forward of a compiled module.

    Attributes:
        before: the instance-level forward that it replaced, or None.
        installed: False once it is uninstalled. Somebody may have kept it and still call it: then it runs the forward
            that it replaced.
        handle: of the module, kept weakly since it holds the module.
    """

    def __init__(self, module: torch.nn.Module, engine: Engine, before: Forward | None) -> None:
        super().__init__(module)
        self.engine = engine
        self.before = before
        self.installed = True
        self.handle: weakref.ref[Any] | None = None
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

    def give_back(self) -> None:
        """Undo what calls have done to the weights, and forget what they have made."""
        self.engine.restore()
        self.engine.reset()

    def _original(self, module: torch.nn.Module) -> Forward:
        return self.before if self.before is not None else functools.partial(type(module).forward, module)


class _CompiledCall:
    """What a compiled transformers model answers when generate() asks for what torch.compile makes of it: the model
    itself, so that only one of the two compilers is at work.

    It holds the module weakly. A copy of the module, which isn't compiled, answers as its class does.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = weakref.ref(module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module = self._module()
        if module is None:
            raise ReferenceError("the compiled module is gone")
        return (
            module.__call__
            if forward_of(module) is not None
            else getattr(type(module), _COMPILED_CALL)(module, *args, **kwargs)
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return _CompiledCall(copy.deepcopy(self._module(), memo))

    def __reduce__(self) -> Any:
        return getattr, (self._module(), _COMPILED_CALL)


def _called_on(caller: Any, forward: _OwnForward) -> torch.nn.Module:
    """The module that is called. A shallow copy has its original's forward, so the calling frame tells which it is."""
    if caller.f_globals is vars(torch.nn.modules.module):
        module = caller.f_locals.get("self")
        if isinstance(module, torch.nn.Module) and module.__dict__.get(MARK) is forward:
            return module
    return forward.alive()


def as_it_is(thing: Any) -> Any:
    """How something is copied and pickled in the place of something else."""
    return operator.getitem, ([thing], 0)
