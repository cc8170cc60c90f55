"""Keeps the compiled state of each module on the module itself, so that both are freed together."""

from __future__ import annotations

import weakref
from typing import Generic, TypeVar

import torch

S = TypeVar("S")
_ATTRIBUTE = "_fast_compile_state"


class States(Generic[S]):
    """The states of all modules that are alive, in the order in which they were put.

    A table from module to state would keep both alive for ever if the state refers to the module, which it may: a guard
    holds what steered the forward, and that may be another node's function that knows the whole model. Held by the
    module, the two are a cycle, which the collector frees.
    """

    def __init__(self) -> None:
        self._alive: weakref.WeakValueDictionary[int, S] = weakref.WeakValueDictionary()

    def get(self, module: torch.nn.Module) -> S | None:
        """The state of this very module, or None."""
        held = vars(module).get(_ATTRIBUTE)
        # a shallow copy of a module has the same attribute, with the original's state
        if not isinstance(held, _Held) or held.owner() is not module:
            return None
        return self._alive.get(id(held.state))

    def put(self, module: torch.nn.Module, state: S) -> None:
        """Give ``module`` this state, and drop the one that it had."""
        self.pop(module)
        vars(module)[_ATTRIBUTE] = _Held(weakref.ref(module), state)
        self._alive[id(state)] = state

    def pop(self, module: torch.nn.Module) -> S | None:
        """Take the state of this module away and return it, or None."""
        state = self.get(module)
        if state is not None:
            del vars(module)[_ATTRIBUTE], self._alive[id(state)]
        return state

    def all(self) -> list[S]:
        """Every state whose module is alive."""
        return list(self._alive.values())


class _Held:
    """A state as a module's attribute. Deep copies and pickles of the module have None there."""

    def __init__(self, owner: weakref.ref[torch.nn.Module], state: object) -> None:
        self.owner = owner
        self.state = state

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()
