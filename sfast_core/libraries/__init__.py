"""Lets calls be recorded of layers from libraries that do something with their weights at each call (dequantise, cast,
move): a trace has the weight as it lies, and what is made of it.

What libraries put onto their layers at a first call is in :mod:`.collecting`. Nothing here imports a library: whoever
has a model of one has imported it.
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
    """A context for a recorded call, in which such layers tell the recorder, in this thread alone, what they do.

    Most models have no such layers, and then a recording needn't wait for another thread's.
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
