"""Records what a function of others does as the model's own: no node of its own, and what it reads is watched."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from ...reporting.reasons.records import RANDOM
from ..errors import CaptureError
from ..guards import Pausing, Reader, Unwatched, reader_at
from ..guards.by_others import Meanwhile
from .call import Where
from .modules import modules_at_work
from .options import Foreign
from .recording import LiveRecording
from .surroundings import Surroundings, tensors_in
from .taken_in import in_words

if TYPE_CHECKING:
    from ..guards import ReadSet


class TakingIn(LiveRecording):
    """Records live calls, and calls of functions that are taken in.

    Attributes:
        read_set: collects what the call reads.
        blamed: the function within which the recording was given up, or None.
    """

    _leaf: list[str] | None
    raised: int | None
    watch: Pausing
    at_work: list[torch.nn.Module]
    ended_in: Reader | None

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.read_set: ReadSet | None = None
        self.blamed: Foreign | None = None
        self._readers: dict[torch.fx.Node, tuple[list[torch.nn.Module], Reader, Foreign | None]] = {}
        self._at_work: list[Foreign] = []

    @contextmanager
    def unread(self) -> Iterator[None]:
        """Record, and don't watch what the code reads: a host's own,
        whose way to a weight is asked for at each call.
        """
        watch, self.watch = self.watch, Unwatched()
        watch.pause()
        try:
            yield
        finally:
            self.watch = watch
            watch.resume()

    @property
    def at_work_in(self) -> Any:
        """The kind of the function that is at work, or None."""
        return None if (foreign := self.others_at_work) is None else foreign.kind

    @property
    def others_at_work(self) -> Foreign | None:
        """The innermost of these functions that is running now."""
        return self._at_work[-1] if self._at_work else None

    def call_taken_in(self, foreign: Foreign, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a function of others returns, recorded with the model's own code.

        Where it looks at an option that its trace can't have, it is run again, live, on what it was handed at first.
        """
        around, kind = foreign.around, foreign.kind
        if self.failure is not None or self._leaf is not None or self.read_set is None or around.taken_in is None:
            return self.call_live(foreign, args, kwargs)
        given = tensors_in((args, kwargs))
        with self.paused():
            kept = [tensor.detach().clone() for tensor in given]
        outer, around.touched = around.touched, None
        self._at_work.append(foreign)
        around.inside_kinds[kind] = foreign.name
        try:
            with self.read_set.within_others(around.taken_in.there, in_words(foreign.path), kind):
                result = foreign.function(*args, **kwargs)
        except Exception as error:
            if not isinstance(error, CaptureError) or around.touched is None:
                if id(error) == self.raised:  # perhaps only because it was recorded
                    self.blamed = foreign
                raise
        finally:
            self._at_work.pop()
            touched, around.touched = around.touched, outer
        if touched is not None:
            with self.paused():
                for tensor, before in zip(given, kept, strict=True):
                    tensor.copy_(before)
            return self.call_live(foreign, args, kwargs)
        if self.failure is None and self._drew():
            self.refuse(RANDOM())
            self.blamed = foreign
        return result

    def _live_call(self, where: Where, around: Surroundings, *args: Any) -> Any:
        if self.failure is not None or self.read_set is None or not around.inside_kinds:
            return super()._live_call(where, around, *args)
        meanwhile = Meanwhile(self.read_set)
        result = super()._live_call(where, around, *args)
        if (found := meanwhile.changed()) is not None:
            reason = f"{where.name} changes {found.what}"
            if around.taken_in is not None:
                around.taken_in.refuse([found.others], reason, list(around.functions.values()))
            self.refuse(f"{reason}, which was read", passing=True)
        return result

    def _note_reader(self, node: torch.fx.Node) -> None:
        """Who is at work, of a node by which the recording may come to nothing when the call is over."""
        self._readers[node] = modules_at_work(), reader_at(sys._getframe(1)), self.others_at_work

    def _blame_reader(self, node: torch.fx.Node) -> None:
        """It does."""
        if node in self._readers:
            self.at_work, self.ended_in, self.blamed = self._readers[node]

    def _drew(self) -> bool:
        """Whether random numbers were drawn since this was asked last, or the call began."""
        if self.random is None:
            return False
        with self.paused():
            drew = self.random.moved() or self.random.foreign_moved()
            if drew:
                self.random.renew()
        return drew
