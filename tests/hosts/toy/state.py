"""The compiled state of one model: a call of it, by the fastest way that is known to be right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sfast_core.config import CompileConfig
from sfast_core.engine import Engine
from sfast_core.hosts.fallback import with_fallback
from sfast_core.hosts.hook import HookedCall

from .application import Stopped
from .obstacles import obstacle


class State:
    """Lives as long as its model and holds nothing of it."""

    def __init__(self, name: str, config: CompileConfig) -> None:
        self.engine = Engine(name, config)
        self.engine.interruptions = (Stopped,)

    def call(self, call: HookedCall) -> Any:
        """What a hook calls in the place of the model's forward."""

        def attempt(eager: Callable[[], Any]) -> Any:
            if reason := call.foreign or obstacle(call.module):
                return self.engine.run_eager(reason, eager)
            return self.engine.call(call.module, call.original, call.args, call.kwargs, eager)

        return with_fallback(self.engine, attempt, call.eager)
