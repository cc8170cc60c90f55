"""Where the application lets others in: before each picture the hook is put on, and it is taken off with the rest."""

from __future__ import annotations

import torch

from sfast_core.config import CompileConfig
from sfast_core.hosts.hook import Hook
from sfast_core.hosts.states import States

from .application import Studio
from .state import State

STATES: States[State] = States()
_HOOKS: dict[int, Hook] = {}


def install(studio: Studio, config: CompileConfig) -> None:
    """Accelerate the studio's model. A second time changes nothing."""

    def before_a_picture(model: torch.nn.Module) -> None:
        if STATES.get(model) is None:
            state = State(type(model).__name__, config)
            STATES.put(model, state)
            _HOOKS[id(model)] = Hook(model, state.call).put()

    if not studio.listeners:
        studio.listeners.append(before_a_picture)


def remove(studio: Studio) -> None:
    """Leave the model as it was found."""
    studio.listeners.clear()
    hook, state = _HOOKS.pop(id(studio.model), None), STATES.pop(studio.model)
    if hook is not None:
        hook.remove()
    if state is not None:
        state.engine.restore()
        state.engine.reset()
