"""What layers of libraries do around their weights at each call, while a call is recorded: a trace has the weight and what is made of it.

Nothing here imports a library: whoever has a model of one has imported it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from ..capture import Recorder
from ..forks import OwnLock
from .blocks import blocks_recorded
from .casting import casts_recorded

__all__ = ["known_layers"]


@functools.cache
def _one_recording() -> OwnLock:
    """One at a time: two that overlap would put each other's functions back."""
    return OwnLock()


@contextmanager
def known_layers(recorder: Recorder) -> Iterator[None]:
    """For its length, what is known of libraries' layers is told to the recorder. Other threads pass through as before.

    Most models have none of these, and are recorded without waiting for another.
    """
    wanted = [scope for scope, there in ((blocks_recorded, recorder.table.in_blocks), (casts_recorded, recorder.table.float8)) if there]
    if not wanted:
        yield
        return
    with _one_recording().lock, ExitStack() as scopes:
        for scope in wanted:
            scopes.enter_context(scope(recorder))
        yield
