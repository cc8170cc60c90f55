"""A host that keeps weights elsewhere, on a CPU: what is away is said by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from sfast_core.runtime.streaming.copier import Copier
from sfast_core.weights import Offload, WeightRef


class PretendOffload(Offload):
    """Weights whose names begin so are away.

    Attributes:
        names: beginnings of names.
        computed: functions of weights, by the weight's name.
        pinned: the names of weights that were to be pinned.
    """

    def __init__(self, *names: str) -> None:
        self.names: tuple[str, ...] = names
        self.computed: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], ...]] = {}
        self.pinned: set[str] = set()

    def away(self, ref: WeightRef, tensor: torch.Tensor, device: torch.device) -> bool:
        return str(ref).startswith(self.names) if self.names else False

    def functions(self, ref: WeightRef) -> tuple[Callable[[torch.Tensor], torch.Tensor], ...]:
        return self.computed.get(str(ref), ())

    def watch(self, refs: Sequence[WeightRef]) -> Callable[[], bool]:
        before = dict(self.computed)
        return lambda: self.computed == before

    def pin(self, ref: WeightRef, tensor: torch.Tensor) -> bool:
        self.pinned.add(str(ref))
        return True


class LateCopier(Copier):
    """Copies as late as it may: what waits for too little finds what was there before."""

    def __init__(self, device: torch.device) -> None:
        self._queue: list[tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]] = []
        self._done = 0

    def copy(self, parts: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
        self._queue.append((parts, sources))

    def copied(self) -> int:
        return len(self._queue)

    def wait_for_copies(self, mark: int) -> None:
        for parts, sources in self._queue[self._done : mark]:
            for part, source in zip(parts, sources, strict=True):
                part.copy_(source)
        self._done = max(self._done, mark)

    def end(self) -> None:
        self.wait_for_copies(len(self._queue))


def part_of(net: torch.nn.Module, part: float) -> tuple[str, ...]:
    """The names of a part of a module's layers, evenly."""
    layers = [
        name for name, layer in net.named_modules() if name and any(True for _ in layer.parameters(recurse=False))
    ]
    return tuple(f"{name}." for index, name in enumerate(layers) if int((index + 1) * part) > int(index * part))
