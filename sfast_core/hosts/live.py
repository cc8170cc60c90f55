"""A model's calls in which other people's functions may run live, on their way to its engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..engine import Engine, Forward
from .fallback import of_host
from .hook import HookedCall
from .options import PROMPTS, Steering, live_steering
from .words import words_of


class LiveCalls:
    """Takes one model's calls apart, and keeps what is known of the options that its code may look for.

    Args:
        engine: the model's.
        seen: who calls it looks at the lists and dicts again that it is handed, as a model does with its blocks'.
    """

    def __init__(self, engine: Engine, seen: bool = False) -> None:
        self._engine = engine
        self._seen = seen
        self._words: set[str] | None = None
        # options by which calls are kept apart, once other people's functions returned something built otherwise
        self._apart: frozenset[str] = frozenset()

    def __call__(
        self,
        call: HookedCall,
        compute: Callable[[Forward, Steering], Any],
        interrupted: tuple[type[BaseException], ...] = (),
    ) -> Any:
        """What ``compute`` returns, which is given the forward that is to be traced and what steers the call.

        Args:
            call: of the model.
            compute: runs the call through the engine.
            interrupted: how the host stops a call. It is said once: running eager in its place would not stop.
        """
        steering = live_steering(
            call, lambda name: self._mentions(call.module, name), self._apart, self._engine.taken_in, self._seen
        )
        around = steering.around
        if around is not None and around.finish is not None:
            around.finish = of_host(around.finish)
        try:
            return compute(of_host(steering.completed(call.original), interrupted), steering)
        finally:
            if around is not None:
                if around.mentioned:  # others may have given the model, or its layers, classes of other files meanwhile
                    self._words = (self._words or set()) | around.mentioned | words_of(call.module)
                if around.another:
                    self._apart = PROMPTS
                around.close()

    def _mentions(self, module: torch.nn.Module, name: str) -> bool:
        """Whether the model's code may look for an option of this name."""
        if self._words is None:
            self._words = words_of(module)
        return name in self._words or self._engine.mentions(name)
