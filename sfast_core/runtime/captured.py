"""One CUDA graph with its static inputs and outputs."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from .backend import Backend
from .holding import Holding
from .rehearsal import CapturedBefore, Rehearsed, Shown, rehearsing

Tensors = Sequence[torch.Tensor]


def _nothing() -> None:
    """In the place of a warm-up."""


def static_like(x: torch.Tensor) -> torch.Tensor:
    """An uninitialised tensor like ``x``: strides dense or made so, lazily conjugated or negated as ``x`` is."""
    static = torch.empty_like(x)
    static = static.conj() if x.is_conj() else static
    return torch._neg_view(static) if x.is_neg() else static


@dataclass(frozen=True)
class Written:
    """The inputs that a computation writes into.

    Attributes:
        inputs: result index → index of the input that the result is.
        there: whether a graph writes them at the caller's own addresses. If not, it writes into a copy, which is copied
            back.
    """

    inputs: Mapping[int, int] = field(default_factory=dict)
    there: bool = False

    def addresses(self, inputs: Tensors) -> dict[int, int]:
        """The addresses of the inputs that are written where the caller has them, by index."""
        return {index: inputs[index].data_ptr() for index in self.inputs.values()} if self.there else {}


class Captured(Holding):
    """A graph with its static inputs and outputs, which lie outside its pool.

    Args:
        backend: captures it.
        inputs: the call's tensors.
        run: the computation.
        written: the inputs that it writes into.
        shown: what is known of the computation.

    Raises:
        RuntimeError: it can't be captured.
    """

    def __init__(
        self,
        backend: Backend,
        inputs: Tensors,
        run: Callable[[Tensors], Tensors],
        written: Written | None = None,
        shown: Shown = None,
    ) -> None:
        self._written = written or Written()
        self._where = self._written.addresses(inputs)
        self._there = {index: weakref.ref(inputs[index]) for index in self._where}
        with torch.inference_mode(False):  # inference tensors refuse writes outside inference mode
            self._static = {index: static_like(x) for index, x in enumerate(inputs) if index not in self._where}
        self._results: dict[int, torch.Tensor] = {}
        self._copy_in(inputs)
        before = backend.free_bytes()

        def compute() -> None:
            self._copy_out(run(self.inputs))

        warm_up, room = _nothing, 0
        if isinstance(shown, Rehearsed):
            self._make_results(shown.empty_results)
            room = shown.room
        else:
            warm_up = compute if isinstance(shown, CapturedBefore) else rehearsing(compute)
        self._replayable = backend.capture(compute, warm_up=warm_up, room=room)
        lost = max(0, before - backend.free_bytes())
        super().__init__(lost + sum(x.nbytes for x in (*self._static.values(), *self._results.values())))

    @property
    def inputs(self) -> list[torch.Tensor]:
        """The tensors that it reads. Those at the caller's own addresses aren't held, and missing once freed."""
        found = [
            self._static[index] if index in self._static else self._there[index]()
            for index in range(len(self._static) + len(self._there))
        ]
        return [tensor for tensor in found if tensor is not None]

    @property
    def outputs(self) -> list[torch.Tensor]:
        """The tensors that it writes, without its inputs."""
        return list(self._results.values())

    def reads(self, inputs: Tensors) -> bool:
        """Whether these inputs lie at the addresses that were captured, where that matters."""
        return all(inputs[index].data_ptr() == address for index, address in self._where.items())

    def replay(self, inputs: Tensors) -> Tensors:
        """The results for ``inputs``, of which :meth:`reads` has to be true. They lie in memory that the next replay
        overwrites; a result that is an input is that input.
        """
        self._copy_in(inputs)
        self._there = {index: weakref.ref(inputs[index]) for index in self._where}  # another tensor at that address
        self._replayable.replay()
        written = self._written.inputs
        for index in set(written.values()) - self._where.keys():
            inputs[index].copy_(self._static[index])
        return [
            inputs[written[index]] if index in written else self._results[index]
            for index in range(len(self._results) + len(written))
        ]

    def release(self) -> None:
        """Give the graph's memory back."""
        super().release()
        self._replayable.release()
        self._static, self._results, self._there = {}, {}, {}

    def _make_results(self, make: Callable[[], Tensors]) -> None:
        with torch.inference_mode(False):
            self._results = {index: mine for index, mine in enumerate(make()) if index not in self._written.inputs}

    def _copy_out(self, results: Tensors) -> None:
        if not self._results:  # the warm-up makes them, outside the capture
            self._make_results(lambda: [torch.empty_like(result) for result in results])
        for index, mine in self._results.items():
            mine.copy_(results[index])

    def _copy_in(self, inputs: Tensors) -> None:
        for index, mine in self._static.items():
            mine.copy_(inputs[index])
