"""What layers of libraries do around their weights at each call, while a call is recorded: a trace has the weight and
what is made of it.

And what they put onto their layers at a first call (:mod:`.collecting`). Nothing here imports a library: whoever has a
model of one has imported it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from ..capture import Recorder, one_recording
from .blocks import blocks_recorded
from .casting import casts_recorded
from .collecting import Collectors
from .hooks import keeps_state
from .offloading import moves_recorded, offloads

__all__ = ["Collectors", "known_layers"]


@contextmanager
def known_layers(recorder: Recorder) -> Iterator[None]:
    """For its length, what is known of libraries' layers is told to the recorder. Other threads pass through as before.

    Most models have none of these, and are recorded without waiting for another.
    """
    recorder.keeps_state = keeps_state
    known = (
        (blocks_recorded, recorder.table.in_blocks),
        (casts_recorded, recorder.table.float8),
        (moves_recorded, offloads()),
    )
    wanted = [scope for scope, there in known if there]
    if not wanted:
        yield
        return
    with one_recording("libraries").lock, ExitStack() as scopes:
        for scope in wanted:
            scopes.enter_context(scope(recorder))
        yield
