"""Which compiled state belongs to which module: the module itself holds it, so that both go together."""

from __future__ import annotations

import weakref
from typing import Generic, TypeVar

import torch

S = TypeVar("S")
_ATTRIBUTE = "_fast_compile_state"


class States(Generic[S]):
    """The states of modules that are alive, in the order in which they came.

    A table from module to state would keep both for ever where the state knows the module: its guard holds what steered
    the forward, and that may be a function of another node's which knows the whole model. Held by the module they are a
    cycle, which the collector takes.
    """

    def __init__(self) -> None:
        self._alive: weakref.WeakValueDictionary[int, S] = weakref.WeakValueDictionary()

    def get(self, module: torch.nn.Module) -> S | None:
        """The state of this very module, or None."""
        held = vars(module).get(_ATTRIBUTE)
        # a shallow copy of a module shares what that holds
        if not isinstance(held, _Held) or held.owner() is not module:
            return None
        return self._alive.get(id(held.state))

    def put(self, module: torch.nn.Module, state: S) -> None:
        """Have ``module`` hold this state, in place of the one that it had."""
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
    """A state, as a module's attribute. Deep copies and pickles of the module have None there."""

    def __init__(self, owner: weakref.ref[torch.nn.Module], state: object) -> None:
        self.owner = owner
        self.state = state

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()
