"""Keeps the compiled state of each module on the module itself, so that both are freed together."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import torch

from ..config import CompileConfig
from ..machine.forks import OwnLock

S = TypeVar("S")
_ATTRIBUTE = "_fast_compile_state"


class Configured(Protocol):
    """A state that is made for one config."""

    config: CompileConfig

    def close(self) -> None:
        """Leave the module as it was found: another state takes over."""


C = TypeVar("C", bound=Configured)


class States(Generic[S]):
    """The states of all modules that are alive, in the order in which they were put. Thread-safe.

    A table from module to state would keep both alive for ever if the state refers to the module, which it may: a guard
    holds what steered the forward, and that may be another node's function that knows the whole model. Held by the
    module, the two are a cycle, which the collector frees.
    """

    def __init__(self) -> None:
        self._alive: weakref.WeakValueDictionary[int, S] = weakref.WeakValueDictionary()

    @property
    def own(self) -> OwnLock:
        """The lock of the table: one, also for two threads that are the first to ask."""
        made: OwnLock | None = vars(self).get("_own")
        # not at import, where a table may be made: it has forks looked out for
        return made if made is not None else vars(self).setdefault("_own", OwnLock())

    def get(self, module: torch.nn.Module) -> S | None:
        """The state of this very module, or None."""
        held = vars(module).get(_ATTRIBUTE)
        # a shallow copy of a module has the same attribute, with the original's state
        if not isinstance(held, _Held) or held.owner() is not module:
            return None
        return self._alive.get(id(held.state))

    def put(self, module: torch.nn.Module, state: S) -> None:
        """Give ``module`` this state, and drop the one that it had."""
        with self.own.lock:
            self.pop(module)
            vars(module)[_ATTRIBUTE] = _Held(weakref.ref(module), state)
            self._alive[id(state)] = state

    def pop(self, module: torch.nn.Module) -> S | None:
        """Take the state of this module away and return it, or None."""
        with self.own.lock:
            state = self.get(module)
            if state is not None:
                del vars(module)[_ATTRIBUTE], self._alive[id(state)]
            return state

    def all(self) -> list[S]:
        """Every state whose module is alive."""
        with self.own.lock:
            return list(self._alive.values())


def state_under(states: States[C], module: torch.nn.Module, config: CompileConfig, make: Callable[[], C]) -> C:
    """The state of this module under this config, made where there is none. One under another config is closed."""
    with states.own.lock:
        before = states.get(module)
        if before is not None and before.config == config:
            return before
        state = make()
        states.put(module, state)
    if before is not None:  # not under the lock: it waits for a call that may be running
        before.close()
    return state


class _Held:
    """A state as a module's attribute. Deep copies and pickles of the module have None there."""

    def __init__(self, owner: weakref.ref[torch.nn.Module], state: object) -> None:
        self.owner = owner
        self.state = state

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()
